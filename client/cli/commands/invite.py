"""Print a fresh invite with members that can be reached now.

$ volunteer invite  # without a running volunteer: the members met last
$ volunteer invite --once  # for one volunteer only, in a private swarm
$ volunteer invite --out my-swarm.swarm  # also as a file

The invite is the only line on stdout. In a private swarm it contains a secret, and the volunteer
that made it redeems it, so it has to run, and answers for whoever uses it.

A running volunteer names itself and the members that it is linked with. Without one the invite
names the members met last, and says so.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from msgspec import structs

from client.cli.reach.home import Home, running_home
from client.cli.reach.running import connect
from client.cli.reach.target import as_name, named_swarm
from client.cli.terminal.answer import Answer, answered
from client.cli.terminal.when import duration_s
from client.control.invites import described
from client.control.snapshot import InviteView
from client.errors import ExitCode, UserError
from client.inviting import NEEDS_VOUCHING, fresh
from client.store.atomic import write_atomic
from protocol.vouching.ticket import TICKET_LIFE_S

REMEMBERED: Final = (
    "no volunteer of this swarm runs here: these members were met last and may be gone"
)
ALONE: Final = "the invite names only this machine: run volunteer join, so that it answers"


@answered
def invite(
    *,
    swarm: str | None = None,
    once: bool = False,
    expires: str | None = None,
    out: Annotated[Path | None, Parameter(name=("--out", "-o"))] = None,
    force: bool = False,
) -> Answer:
    """Print a fresh invite, with members of the swarm that can be reached now.

    Parameters
    ----------
    swarm
        Name or beginning of the id of the swarm, where there are several.
    once
        Make it good for one volunteer only, in a private swarm.
    expires
        Let nobody in with it after so long, such as 2h or 3d (default: 7d), in such a swarm.
    out
        Also write the invite as a .swarm file, which needs no member to know the model.
    force
        Overwrite that file.
    """
    home = running_home()
    life_s = None if expires is None else duration_s(expires, "--expires")
    if life_s is not None and life_s > TICKET_LIFE_S:
        raise UserError("--expires: an invite is good for 7 days at most", exit_code=ExitCode.USAGE)
    found, running = _of_running(home, swarm, once, life_s), True
    if found is None:
        found, running = _remembered(home, swarm, limited=once or life_s is not None), False
    notes = list(found.notes)
    if out is not None:
        _write(out, found.file, force)
        notes.append(f"wrote {out}; join with it: volunteer join --swarm {shlex.quote(out.name)}")
    file = str(out) if out is not None else None
    return Answer({**structs.asdict(found), "running": running, "file": file}, found.invite, notes)


def _of_running(
    home: Home, swarm: str | None, once: bool, life_s: float | None
) -> InviteView | None:
    """Return the invite of the running volunteer; None: none runs."""
    try:
        with connect(home.folders, swarm) as node:
            return node.invite(once=once, life_s=life_s)
    except UserError as error:
        if error.exit_code != ExitCode.NOT_RUNNING:
            raise
        return None


def _remembered(home: Home, swarm: str | None, *, limited: bool) -> InviteView:
    """Return an invite from the files on disk; ``limited``: for one member, or for a while.

    Raises:
        UserError: no such swarm is known, or none of its members.
    """
    known = named_swarm(home, as_name(swarm))
    if known is None:
        named = f"swarm {swarm!r}" if swarm else "swarm"
        what = f"no {named} is known on this machine"
        raise UserError(what, "found one with volunteer create, or join one", ExitCode.NOT_RUNNING)
    own = home.signer().peer
    others = [[address] for address in known.peers if address.peer != own]
    found = fresh(known, others or [known.peers])
    if not found.peers:
        words = f"no member of {known.manifest.name} is known on this machine"
        raise UserError(words, "start it: volunteer join", ExitCode.NOT_RUNNING)
    if known.manifest.policy.private:
        words = "this swarm's invites are redeemed by the volunteer that makes them, and none runs"
        raise UserError(words, "start it: volunteer join", ExitCode.NOT_RUNNING)
    if limited:
        raise UserError(NEEDS_VOUCHING)
    view = described(found)
    return structs.replace(view, notes=[REMEMBERED if others else ALONE, *view.notes])


def _write(path: Path, contents: str, force: bool) -> None:
    if path.exists() and not force:
        raise UserError(f"{path} exists already", "choose another --out, or --force")
    try:
        write_atomic(path, contents.encode())
    except OSError as error:
        words = f"cannot write {path}: {error.strerror}"
        raise UserError(words, "choose another --out") from error
