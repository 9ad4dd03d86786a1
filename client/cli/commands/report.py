"""``volunteer report``: one page about a run, to keep or to show to others."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from client.cli.reach.home import Home, find_home
from client.cli.reach.target import find_swarm
from client.cli.reporting.facts import Report
from client.cli.reporting.page import OURS, page
from client.cli.reporting.sources import from_disk, from_node
from client.cli.terminal.output import print_json, say
from client.cli.terminal.parameters import AsJson
from client.control.client import ControlClient, NotRunning, running_nodes
from client.errors import ExitCode, UserError
from client.store.atomic import write_atomic
from protocol.invite import SwarmFile

DEFAULT_OUT = Path("report.html")
MARK_WITHIN = 1024
"""Characters from its beginning within which a page of ours says so."""


def report(
    *,
    swarm: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    out: Annotated[Path | None, Parameter(name=("--out", "-o"))] = None,
    force: bool = False,
    json: AsJson = False,
) -> None:
    """Write a page about a run: loss, throughput, members, faults and who was expelled.

    The page needs no network and no other file. It is made from what the running volunteer knows,
    or else from what it left on this disk, and says which. Addresses and secrets are left out;
    peer ids and names, which members know, are not.

    Parameters
    ----------
    swarm
        Name, id or .swarm file of the swarm (default: the only one known here).
    out
        File to write (default: report.html). A report that is there is replaced.
    force
        Replace the file even if it is no report.
    json
        Print the same facts as JSON, unredacted; a page is written only with --out.
    """
    home = find_home()
    known = _known(home, swarm)
    path = out or DEFAULT_OUT
    writes = not json or out is not None
    if writes and not force:
        _refuse_other(path)
    facts = _facts(home, known)
    if writes:
        _write(path, page(facts))
    if json:
        print_json(facts)
        return
    told = "the running volunteer" if facts.source == "running" else "this disk; none runs"
    say(f"{known.manifest.name}: step {facts.run.step} of {facts.run.steps}, from {told}")
    print(path)


def _known(home: Home, swarm: str | None) -> SwarmFile:
    target = find_swarm(home, swarm)
    if not isinstance(target, SwarmFile):
        raise UserError("this swarm is not known on this machine", "join it first", ExitCode.USAGE)
    return target


def _facts(home: Home, swarm: SwarmFile) -> Report:
    for path, node in running_nodes(home.folders.runtime):
        if node.swarm == swarm.swarm:
            with suppress(NotRunning), ControlClient(path) as client:  # it may end meanwhile
                return from_node(home, swarm, client)
    return from_disk(home, swarm)


def _refuse_other(path: Path) -> None:
    """Refuse to replace a file that is no report of ours."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            ours = OURS in file.read(MARK_WITHIN)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _not_written(path, error) from error
    if not ours:
        problem = f"{path} exists and is no report"
        raise UserError(problem, "choose another --out, or --force", ExitCode.USAGE)


def _write(path: Path, text: str) -> None:
    try:
        write_atomic(path, text.encode(), 0o644)
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {path}: {error.strerror}", "choose another --out")
