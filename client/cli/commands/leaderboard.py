"""``volunteer leaderboard``: who contributed how much to the committed steps of a swarm."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from msgspec import Struct

from client.cli.reach.contributors import contributors_of
from client.cli.reach.home import running_home
from client.cli.reach.target import find_swarm
from client.cli.terminal.output import print_json
from client.cli.terminal.parameters import AsJson
from client.control.snapshot import ContributorView
from client.errors import ExitCode, UserError
from client.store.curve import CurveFile
from client.store.identity import load_identity
from client.views.report import leaderboard_report
from protocol.invite import SwarmFile
from protocol.wire.envelope import Signer


class Leaderboard(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer leaderboard --json``."""

    swarm: str
    swarm_name: str
    contributors: list[ContributorView]
    """The most work first."""
    schema_version: int = 1


def leaderboard(
    *,
    swarm: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    json: AsJson = False,
) -> None:
    """List who contributed how much, as other volunteers counted it.

    Every volunteer says once in a while what the others of its stage contributed to committed
    steps. What at least two others say of somebody counts, and its own word does not. It is a board
    for people: nobody is trusted, matched or paid by it.

    Parameters
    ----------
    swarm
        Name, id or .swarm file of the swarm (default: the only one known here).
    """
    home = running_home()
    known = find_swarm(home, swarm)
    if not isinstance(known, SwarmFile):
        raise UserError("this swarm is not known on this machine", "join it first", ExitCode.USAGE)
    curve = CurveFile(home.folders.curve(known.swarm)).load()
    found = contributors_of(home, known, curve[-1][0] + 1 if curve else 0)
    if json:
        print_json(
            Leaderboard(swarm=known.swarm, swarm_name=known.manifest.name, contributors=found)
        )
        return
    seed = load_identity(home.folders.data)
    print(leaderboard_report(found, Signer(seed).peer if seed else ""))
