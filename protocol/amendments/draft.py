"""Makes an amendment from what a founder wants to change, or says why it cannot be. Pure."""

from typing import Any, Final

from msgspec import structs

from model_zoo.specs.optimizer import OptimizerSpec
from protocol import limits
from protocol.amendments.amendment import Amendment
from protocol.amendments.book import Amendments
from protocol.amendments.changes import Changes
from protocol.errors import LocalProtocolError

ABSURD_RATE: Final = 100.0
"""So many times the highest rate that the manifest has: no run survives that."""


def draft(book: Amendments, run_lr: float, changes: Changes, done: int) -> Amendment:
    """Return the next amendment of a run.

    Args:
        run_lr: the highest learning rate of the manifest.
        done: steps that the run has done, as far as is known.

    Raises:
        LocalProtocolError: it cannot be; says why.
    """
    last = book.counting[-1].amendment if book.counting else None
    number = 1 if last is None else last.number + 1
    if number > limits.MAX_AMENDMENTS:
        raise LocalProtocolError(f"a run is amended {limits.MAX_AMENDMENTS} times at most")
    steps = book.steps if changes.steps is None else changes.steps
    _check_steps(steps, changes, done)
    optimizer = _optimizer(book.newest, changes, steps)
    if optimizer.lr > ABSURD_RATE * run_lr:
        words = f"learning rate {optimizer.lr:g} is more than {ABSURD_RATE:.0f} times {run_lr:g}"
        raise LocalProtocolError(f"{words}, with which the run was founded: it would destroy it")
    if steps == book.steps and optimizer == book.newest:
        raise LocalProtocolError("that is how the run is already: nothing would change")
    notice = book.notice if changes.of_schedule else 0
    earlier = last.from_step if last else 0  # whose schedule this one restates
    from_step = max(changes.from_step or 0, done + notice, earlier)
    return Amendment(number, from_step, steps, optimizer)


def _check_steps(steps: int, changes: Changes, done: int) -> None:
    if not 1 <= steps <= limits.MAX_STEP:
        raise LocalProtocolError(f"a run has between 1 and {limits.MAX_STEP:,} steps")
    if steps <= done and changes.steps is not None:
        words = f"the run has done {done:,} steps, which cannot be taken back"
        raise LocalProtocolError(f"{words}: give more, or end it with volunteer finish")
    if changes.from_step is None:
        return
    if not changes.of_schedule:
        words = "from which step on is said of a learning rate or a schedule"
        raise LocalProtocolError(f"{words}: steps are added at the end")
    if changes.from_step < done:
        words = f"the run has done {done:,} steps, so nothing can change at {changes.from_step:,}"
        raise LocalProtocolError(f"{words}: leave the step out to change it as soon as possible")
    if changes.from_step >= steps:
        words = f"the run ends after {steps:,} steps: at {changes.from_step:,} nothing is left"
        raise LocalProtocolError(words)


def _optimizer(before: OptimizerSpec, changes: Changes, steps: int) -> OptimizerSpec:
    """Return the optimizer with its new schedule."""
    given = changes.of_schedule
    if not given:
        return before
    lr = given.get("lr", before.lr)
    usual: dict[str, Any] = {
        "min_lr": before.min_lr * lr / before.lr,
        "decay_steps": max(steps, given.get("warmup_steps", before.warmup_steps)),
    }
    ends_as_before = usual["decay_steps"] == before.decay_steps and "decay_steps" not in given
    kept = ends_as_before and given.get("schedule", before.schedule) == before.schedule
    usual["decay_from"] = before.decay_from if kept else None
    try:
        return structs.replace(before, **(usual | given))
    except ValueError as error:
        raise LocalProtocolError(str(error)) from error
