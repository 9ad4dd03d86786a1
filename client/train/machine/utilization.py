"""What a stage's worker computes, in floating-point operations per second.

Counted are the operations that the model needs (`model_zoo.specs.operations`), of passes that were
answered in the last minute. What is computed twice counts once, and audits and rounds count
nothing: only their time does. Pure but for what it holds; the clock is handed in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from model_zoo.specs.operations import flops_per_token, forward_flops_per_token
from model_zoo.specs.slices import slices
from protocol.manifest import Manifest
from protocol.pipeline.effects import BackwardTask, ForwardTask, LossTask, PassTask, Task

WINDOW_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Operations of one microbatch in a stage."""

    forward: float
    whole: float
    """Forward and backward."""

    def of(self, task: Task) -> float:
        """Return the operations that the model needs a task for; 0 of what is no pass."""
        match task:
            case LossTask():
                return self.whole
            case ForwardTask() | PassTask(into="loss"):
                return self.forward
            case BackwardTask():
                return self.whole - self.forward
            case _:
                return 0.0


def pass_costs(manifest: Manifest, stage: int) -> PassCosts:
    """Return what the microbatches of a manifest cost in a stage."""
    part, tokens = slices(manifest.layers_per_stage)[stage], manifest.tokens_per_microbatch
    return PassCosts(
        forward=float(tokens * forward_flops_per_token(manifest.model, part)),
        whole=float(tokens * flops_per_token(manifest.model, part)),
    )


class _Done(NamedTuple):
    at: float
    flop: float
    seconds: float


class Utilization:
    """See the module's docstring.

    Args:
        costs: of the stage.
        began: when the worker got the stage, on the clock of `note`.
        at_once: tasks that the worker computes at a time, each on a device of its own.
    """

    def __init__(self, costs: PassCosts, began: float, at_once: int = 1) -> None:
        self._costs, self._began, self._at_once = costs, began, at_once
        self._done: deque[_Done] = deque()

    def note(self, task: Task, seconds: float, now: float) -> None:
        """A task was answered that took so many ``seconds`` of computing."""
        self._done.append(_Done(now, self._costs.of(task), seconds))
        self._forget(now)

    def flop_per_s(self, now: float) -> float:
        """Return the operations per second that passes, waiting included; 0 before the first."""
        self._forget(now)
        passed_s = min(WINDOW_S, now - self._began)
        return sum(one.flop for one in self._done) / passed_s if passed_s > 0 else 0.0

    def computing_flop_per_s(self, now: float) -> float:
        """Return the operations per second while all devices compute; 0 before the first."""
        self._forget(now)
        busy_s = sum(one.seconds for one in self._done) / self._at_once
        return sum(one.flop for one in self._done) / busy_s if busy_s > 0 else 0.0

    def _forget(self, now: float) -> None:
        while self._done and self._done[0].at <= now - WINDOW_S:
            self._done.popleft()
