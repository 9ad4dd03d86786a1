"""Changes a run as its founder, through its running volunteer, which signs and tells the others.

Shows what will change and asks once. Everything that decides whether it can be is in
``protocol.amendments.draft``.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import to_builtins

from client.cli.reach.home import running_home
from client.cli.reach.running import connect
from client.cli.terminal.answer import Answer, of_node
from client.cli.terminal.ask import confirm
from client.cli.terminal.output import say
from client.control.amended import ONLY_THE_FOUNDER
from client.control.client import ControlClient, ControlError
from client.control.snapshot import Amended
from client.errors import ExitCode, UserError
from protocol.amendments.changes import Changes


def change_run(swarm: str | None, changes: Changes, *, yes: bool) -> Answer:
    """Change the run of the swarm that a volunteer takes part in here.

    Args:
        swarm: name or beginning of its id; None: the only one that runs.
        changes: what is to change.
        yes: do not ask.

    Raises:
        UserError: it cannot be changed like that, or not by us.
    """
    with connect(running_home().folders, swarm) as node:
        for line in described(_amend(node, changes, sign=False)):
            say(line)
        confirm("Sign it? It cannot be taken back, only changed again.", yes=yes)
        done, who = _amend(node, changes, sign=True), node.greeting
    lines = (
        f"signed amendment {done.amendment.number} of {who.swarm_name}",
        "members are told now; volunteer status says from which step on it holds",
    )
    return Answer(of_node(who, **to_builtins(done)), lines)


def _amend(node: ControlClient, changes: Changes, *, sign: bool) -> Amended:
    try:
        return node.amend(changes, sign=sign)
    except ControlError as error:
        if str(error).startswith(ONLY_THE_FOUNDER.partition("{")[0]):
            raise UserError(str(error), "ask the founder to do it", ExitCode.REFUSED) from error
        raise


def described(change: Amended) -> Iterator[str]:
    """Yield lines about a change that is to be signed."""
    yield f"step {change.step:,} is done; {change.amendment.words}"
    if all(before == after for _, before, after in change.rates):
        last = change.rates[-1][2] if change.rates else 0.0
        yield f"the learning rate stays as it was, {last:.3g} at the end: see volunteer amend"
        return
    yield f"from step {change.earliest:,} on, or a few later: as soon as all stages have agreed"
    yield f"{'step':>12}  {'as it was':>10}  {'as it will be':>13}"
    for step, before, after in change.rates:
        yield f"{step:>12,}  {before:>10.3g}  {after:>13.3g}"
