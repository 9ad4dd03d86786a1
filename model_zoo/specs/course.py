"""The course of a run: which learning rate holds at which step.

A run begins with the schedule of its manifest. The founder's amendments turn it, each from a step
on. So the learning rate follows from the manifest, the turns and the step alone: a roll-back to an
earlier version needs nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from model_zoo.specs.optimizer import OptimizerSpec, learning_rate

SCHEDULE_FIELDS = ("lr", "min_lr", "warmup_steps", "decay_steps", "schedule", "decay_from")
"""The fields of an optimizer that may change in the midst of a run."""


@dataclass(frozen=True, slots=True)
class Turn:
    """From a step on, other numbers hold."""

    from_step: int
    optimizer: OptimizerSpec


@dataclass(frozen=True, slots=True)
class Course:
    """The numbers of a run by step.

    Fields:
        optimizer: what it begins with.
        turns: in the order in which they were made; of several that hold at a step the last counts.
    """

    optimizer: OptimizerSpec
    turns: Sequence[Turn] = ()

    def at(self, step: int) -> OptimizerSpec:
        """Return the numbers that hold for update ``step``, counted from 0."""
        holding = (turn.optimizer for turn in reversed(self.turns) if turn.from_step <= step)
        return next(holding, self.optimizer)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of update ``step``, counted from 0."""
        return learning_rate(self.at(step), step)


def changed_beside_schedule(before: OptimizerSpec, after: OptimizerSpec) -> list[str]:
    """Return the fields that differ and are no part of the schedule, by name."""
    names = (name for name in before.__struct_fields__ if name not in SCHEDULE_FIELDS)
    return [name for name in names if getattr(before, name) != getattr(after, name)]
