"""Change the steps or the learning rate of the run that you founded.

Group: the swarm

$ volunteer amend --learning-rate 3e-4
  # from the first step by which all members have heard of it
$ volunteer amend --learning-rate 1e-4 --schedule constant --from-step 5000  # later
$ volunteer amend --steps 20000  # in all; also of a run that is complete
$ volunteer amend --steps 20000 --schedule wsd  # more steps, with a fall in the last fifth

Only the founder's running volunteer can. It shows the rates, and the step from which they hold,
before it asks.

All members apply it from the same step on: the one that you name, or the first by which all have
heard of it. What is not given stays, but a new rate or schedule ends with the run, and the last
rate keeps its share of the highest.
"""

from collections.abc import Iterator

from msgspec import to_builtins

from client.cli.founding.options import RateChoices
from client.cli.reach.running import connect
from client.cli.terminal.answer import Answer, answered, of_node
from client.cli.terminal.ask import confirm
from client.cli.terminal.output import say
from client.control.amended import ONLY_THE_FOUNDER
from client.control.client import ControlClient, ControlError
from client.control.snapshot import Amended
from client.errors import ExitCode, UserError
from protocol.amendments.changes import Changes


@answered
def amend(
    *,
    rate: RateChoices = RateChoices(),  # noqa: B008  (frozen)
    from_step: int | None = None,
    steps: int | None = None,
    yes: bool = False,
) -> Answer:
    """Change how many steps a run has in all, or its learning rate from a step on.

    Args:
        from_step: Step from which this holds at the earliest; as soon as possible.
        steps: Steps of the whole run, those that are done included; also of a run that is complete.
        yes: Do not ask.
    """
    changes = Changes(steps=steps, from_step=from_step, **vars(rate))
    with connect() as node:
        for line in described(_amend(node, changes, sign=False)):
            say(line)
        confirm("Sign it? It cannot be taken back, only changed again.", yes=yes)
        done, who = _amend(node, changes, sign=True), node.greeting
    lines = (
        f"signed amendment {done.amendment.number} of {who.swarm_name}",
        "members are told now; volunteer status shows it",
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
    yield f"from step {change.earliest:,} on:"
    yield f"{'step':>12}  {'as it was':>10}  {'as it will be':>13}"
    for step, before, after in change.rates:
        yield f"{step:>12,}  {before:>10.3g}  {after:>13.3g}"
