"""Schedules tasks when one machine hosts several stages: one stage computes at a time.

Every seat has a gate with a FIFO queue of its tasks. A single open gate is passed without waiting;
otherwise ``Turns`` chooses the next stage. State: the waiting tasks, which are opaque here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from protocol.seat.sharing import Claim, Turns

Start = Callable[[], bool]
"""Hands a task to the worker; False if there was none after all."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    start: Start
    in_round: bool


class TaskScheduler:
    """One per machine; opens gates and chooses whose task runs next.

    ``at_once``: tasks of a stage that its worker runs at a time.
    """

    def __init__(self, at_once: int = 1) -> None:
        self._gates: dict[int, Gate] = {}
        self.at_once = at_once
        self._turns = Turns(at_once)
        self._turning = False

    def open(self, stage: int, rate: Callable[[], float], ready: Callable[[], int]) -> Gate:
        """Return the gate of a stage.

        Args:
            stage: the stage.
            rate: returns microbatches per second of compute, 0 before the first.
            ready: returns the microbatches that could become tasks now.
        """
        gate = self._gates[stage] = Gate(self, stage, rate, ready)
        return gate

    def turn(self) -> None:
        """Start tasks while a stage may compute."""
        if self._turning:
            return  # a task that starts may queue others: the loop below sees them
        self._turning = True
        try:
            while (gate := self._next()) is not None:
                if not gate.start_one():
                    self._turns.ended(gate.stage)
        finally:
            self._turning = False

    def ended(self, stage: int) -> None:
        """A task is over."""
        self._turns.ended(stage)
        self.turn()

    def close(self, gate: Gate) -> None:
        """Remove the gate of a closed seat."""
        if self._gates.get(gate.stage) is gate:
            del self._gates[gate.stage]
            self._turns.forget(gate.stage)
            self.turn()

    def _next(self) -> Gate | None:
        waiting = [gate for gate in self._gates.values() if gate.waiting]
        if not waiting:
            return None
        if len(self._gates) == 1:
            self._turns.started(waiting[0].stage)
            return waiting[0]
        stage = self._turns.next([gate.claim() for gate in waiting])
        return None if stage is None else self._gates[stage]


class Gate:
    """The FIFO queue of one seat's tasks.

    Args:
        scheduler: chooses the stage that computes.
        stage: index of the stage.
        rate: returns microbatches per second of compute, 0 before the first.
        ready: returns the microbatches that could become tasks now.
    """

    def __init__(
        self,
        scheduler: TaskScheduler,
        stage: int,
        rate: Callable[[], float],
        ready: Callable[[], int],
    ) -> None:
        self.stage = stage
        self._scheduler, self._rate, self._ready = scheduler, rate, ready
        self._queue: deque[_Waiting] = deque()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Tasks that have not been started."""
        return len(self._queue)

    def claim(self) -> Claim:
        """Return this stage's claim on compute time."""
        in_round = any(waiting.in_round for waiting in self._queue)
        return Claim(self.stage, self._rate(), len(self._queue) + self._ready(), in_round)

    def enter(self, start: Start, *, in_round: bool) -> None:
        """Queue a task; it starts when it is this stage's turn."""
        self._queue.append(_Waiting(start, in_round))
        self._scheduler.turn()

    def start_one(self) -> bool:
        """Start the first waiting task; False if there was nothing to do after all."""
        return self._queue.popleft().start()

    def ended(self) -> None:
        """A started task is over."""
        if not self._closed:
            self._scheduler.ended(self.stage)

    def close(self) -> None:
        """Drop all waiting tasks."""
        self._closed = True
        self._queue.clear()
        self._scheduler.close(self)
