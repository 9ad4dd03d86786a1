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
        book: the amendments so far.
        run_lr: the highest learning rate of the manifest.
        changes: what is to change.
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
    if not changes.of_schedule:
        return before
    lr = before.lr if changes.lr is None else changes.lr
    warmup = before.warmup_steps if changes.warmup_steps is None else changes.warmup_steps
    end = max(steps, warmup) if changes.decay_steps is None else changes.decay_steps
    fields: dict[str, Any] = {"lr": lr, "warmup_steps": warmup, "decay_steps": end}
    last = before.min_lr * lr / before.lr
    fields["min_lr"] = last if changes.min_lr is None else changes.min_lr
    fields["schedule"] = before.schedule if changes.schedule is None else changes.schedule
    ends_as_before = changes.decay_steps is None and before.decay_steps == end
    kept = ends_as_before and fields["schedule"] == before.schedule
    follows = before.decay_from if kept else None
    fields["decay_from"] = follows if changes.decay_from is None else changes.decay_from
    try:
        return structs.replace(before, **fields)
    except ValueError as error:
        raise LocalProtocolError(str(error)) from error
