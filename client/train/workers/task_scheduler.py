"""Lets one stage compute at a time where one machine hosts several: max-weight.

Every seat has a gate with a FIFO queue of its tasks. A single open gate is passed without waiting.
Of several the stage with the largest rate x backlog goes first (Tassiulas & Ephremides 1992: it
keeps every queue bounded whenever any rule does), so that time goes to the stages with waiting
work. A round comes before microbatches, because the whole stage waits for its slowest member. No
stage starves.

State: the waiting tasks, whose turn it is, and how much it has running.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.pipeline.effects import Task

MAX_PASSED_OVER = 16
"""A stage that waits goes first after so many tasks of others, whatever the weights say."""
TASKS_PER_TURN = 2
"""Tasks of one stage given to its worker at once: one runs, one waits, so that the worker does not
idle while the node hears of the first. A worker that runs several at a time gets one more."""


class TaskScheduler:
    """One per machine; opens gates and chooses whose task runs next.

    ``at_once``: tasks of a stage that its worker runs at a time.
    """

    def __init__(self, at_once: int = 1) -> None:
        self._most = TASKS_PER_TURN + at_once - 1
        self._gates: list[Gate] = []
        self._holder: Gate | None = None
        self._running = 0
        self._starting = False

    def open(
        self, start: Callable[[Task], bool], rate: Callable[[], float], ready: Callable[[], int]
    ) -> Gate:
        """Return the gate of a stage; the arguments are those of ``Gate``."""
        gate = Gate(self, start, rate, ready)
        self._gates.append(gate)
        return gate

    def start_tasks(self) -> None:
        """Start tasks while a stage may compute."""
        if self._starting:
            return  # a task that starts may queue others: the loop below sees them
        self._starting = True
        try:
            while (gate := self._next()) is not None:
                task, _ = gate.waiting.popleft()
                if not gate.start(task):
                    self.note_end(gate)
        finally:
            self._starting = False

    def close(self, gate: Gate) -> None:
        """Remove the gate of a closed seat; what its worker still has does not count."""
        if gate in self._gates:
            self._gates.remove(gate)
        if gate is self._holder:
            self._holder = None
        self.start_tasks()

    def _next(self) -> Gate | None:
        """Return the gate that may give its worker one more task now, and count that task.

        None: nothing waits, or what runs has to end first. Two stages never run at once, for both
        would want the whole processor.
        """
        waiting = [gate for gate in self._gates if gate.waiting]
        if not waiting:
            return None
        first, runs = _most_urgent(waiting), self._running if self._holder else 0
        if len(self._gates) > 1 and runs and (first is not self._holder or runs >= self._most):
            return None
        if first is not self._holder:
            self._holder, runs = first, 0
        self._running = runs + 1
        for gate in self._gates:
            gate.passed_over = gate.passed_over + 1 if gate.waiting and gate is not first else 0
        return first

    def note_end(self, gate: Gate) -> None:
        """A task of a gate is over."""
        if gate is self._holder and self._running:
            self._running -= 1


@dataclass(eq=False, slots=True)
class Gate:
    """The FIFO queue of one seat's tasks.

    Fields:
        scheduler: chooses the stage that computes.
        start: hands a task to the worker; False if there was none after all.
        rate: returns microbatches per second of compute, 0 before the first.
        ready: returns the microbatches that could become tasks now.
        waiting: tasks that have not been started, and whether a round waits for each.
        passed_over: tasks that others have started while these waited.
    """

    scheduler: TaskScheduler
    start: Callable[[Task], bool]
    rate: Callable[[], float]
    ready: Callable[[], int]
    waiting: deque[tuple[Task, bool]] = field(default_factory=deque)
    passed_over: int = 0

    def enter(self, task: Task, *, in_round: bool) -> None:
        """Queue a task; it starts when it is this stage's turn."""
        self.waiting.append((task, in_round))
        self.scheduler.start_tasks()

    def ended(self) -> None:
        """A started task is over."""
        self.scheduler.note_end(self)
        self.scheduler.start_tasks()

    def close(self) -> None:
        """Drop all waiting tasks."""
        self.waiting.clear()
        self.scheduler.close(self)


def _most_urgent(waiting: list[Gate]) -> Gate:
    """Return the gate whose task is to run; a stage not measured yet counts as the fastest."""
    fastest = max(gate.rate() for gate in waiting) or 1.0

    def urgency(gate: Gate) -> tuple[bool, bool, float, int]:
        starved = gate.passed_over >= MAX_PASSED_OVER
        in_round = any(in_round for _, in_round in gate.waiting)
        weight = (gate.rate() or fastest) * (len(gate.waiting) + gate.ready())
        return starved, in_round, weight, gate.passed_over

    return max(waiting, key=urgency)
