"""Print a fresh invite with members that can be reached now.

$ volunteer invite  # the running volunteer, and the members that it is linked with
$ volunteer invite --once  # for one volunteer only, in a private swarm
$ volunteer invite --out my-swarm.swarm  # also as a file

The invite is the only line on stdout. In a private swarm it contains a secret, and the volunteer
that made it redeems it, so it has to run, and answers for whoever uses it.
"""

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec import structs

from client.cli.reach.running import connect
from client.cli.terminal.answer import Answer, answered
from client.cli.terminal.output import check_output
from client.cli.terminal.parameters import Duration
from client.errors import UsageError, system_errors
from client.store.atomic import write_atomic
from protocol.vouching.ticket import TICKET_LIFE_S


@answered
def invite(
    *,
    once: bool = False,
    expires: Duration = None,
    out: Annotated[Path | None, Parameter(name=("--out", "-o"))] = None,
    force: bool = False,
) -> Answer:
    """Print a fresh invite, with members of the swarm that can be reached now.

    Args:
        once: Make it good for one volunteer only, in a private swarm.
        expires: Let nobody in with it after so long, such as 2h or 3d (default: 7d), in such a
            swarm.
        out: Also write the invite as a .swarm file, which needs no member to know the model.
        force: Overwrite that file.
    """
    if expires is not None and expires > TICKET_LIFE_S:
        raise UsageError("--expires: an invite is good for 7 days at most")
    if out is not None:
        check_output(out, force=force)
    with connect() as node:
        found = node.invite(once=once, life_s=expires)
    notes = list(found.notes)
    if out is not None:
        with system_errors(f"cannot write {out}", "choose another --out"):
            write_atomic(out, found.file.encode())
        notes.append(f"wrote {out}; join with it: volunteer join --swarm {shlex.quote(out.name)}")
    file = str(out) if out is not None else None
    return Answer({**structs.asdict(found), "file": file}, found.invite, notes)
