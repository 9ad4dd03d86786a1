"""Schedules tasks when one machine hosts several stages: one stage computes at a time.

Every seat has a gate with a FIFO queue of its tasks. A single open gate is passed without waiting;
otherwise ``Turns`` chooses the next stage. State: the waiting tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.pipeline.effects import Task
from protocol.seat.sharing import Claim, Turns


class TaskScheduler:
    """One per machine; opens gates and chooses whose task runs next.

    ``at_once``: tasks of a stage that its worker runs at a time.
    """

    def __init__(self, at_once: int = 1) -> None:
        self._gates: dict[int, Gate] = {}
        self.at_once = at_once
        self._turns = Turns(at_once)
        self._turning = False

    def open(
        self,
        stage: int,
        start: Callable[[Task], bool],
        rate: Callable[[], float],
        ready: Callable[[], int],
    ) -> Gate:
        """Return the gate of a stage; the arguments are those of ``Gate``."""
        gate = self._gates[stage] = Gate(self, stage, start, rate, ready)
        return gate

    def turn(self) -> None:
        """Start tasks while a stage may compute."""
        if self._turning:
            return  # a task that starts may queue others: the loop below sees them
        self._turning = True
        try:
            while (gate := self._next()) is not None:
                task, _ = gate.waiting.popleft()
                if not gate.start(task):
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


@dataclass(eq=False, slots=True)
class Gate:
    """The FIFO queue of one seat's tasks.

    Fields:
        scheduler: chooses the stage that computes.
        stage: index of the stage.
        start: hands a task to the worker; False if there was none after all.
        rate: returns microbatches per second of compute, 0 before the first.
        ready: returns the microbatches that could become tasks now.
        waiting: tasks that have not been started, and whether a round waits for each.
    """

    scheduler: TaskScheduler
    stage: int
    start: Callable[[Task], bool]
    rate: Callable[[], float]
    ready: Callable[[], int]
    waiting: deque[tuple[Task, bool]] = field(default_factory=deque)
    closed: bool = False

    def claim(self) -> Claim:
        """Return this stage's claim on compute time."""
        in_round = any(in_round for _, in_round in self.waiting)
        return Claim(self.stage, self.rate(), len(self.waiting) + self.ready(), in_round)

    def enter(self, task: Task, *, in_round: bool) -> None:
        """Queue a task; it starts when it is this stage's turn."""
        self.waiting.append((task, in_round))
        self.scheduler.turn()

    def ended(self) -> None:
        """A started task is over."""
        if not self.closed:
            self.scheduler.ended(self.stage)

    def close(self) -> None:
        """Drop all waiting tasks."""
        self.closed = True
        self.waiting.clear()
        self.scheduler.close(self)
