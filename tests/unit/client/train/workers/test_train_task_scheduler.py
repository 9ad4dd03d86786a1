"""Tasks on their way to the workers: in order, one stage at a time, without waiting when alone."""

from __future__ import annotations

from typing import Any

from client.train.workers.task_scheduler import Gate, TaskScheduler


class Stage:
    """A seat that only counts what was started; its tasks are names, and an empty one comes to
    nothing."""

    def __init__(
        self, scheduler: TaskScheduler, stage: int, log: list[str], ready: int = 0
    ) -> None:
        self.gate: Gate = scheduler.open(stage, self.start, lambda: 1.0, lambda: ready)
        self._log = log

    def wants(self, name: Any, *, in_round: bool = False) -> None:
        self.gate.enter(name, in_round=in_round)

    def start(self, name: Any) -> bool:
        if name == "bringer":
            self.wants("brought")
        self._log += [name] if name else []
        return bool(name)


def test_two_stages_take_turns_by_backlog() -> None:
    log: list[str] = []
    scheduler = TaskScheduler()
    few, many = Stage(scheduler, 0, log), Stage(scheduler, 1, log, ready=10)
    for number in range(3):
        few.wants(f"few {number}")
    for number in range(3):
        many.wants(f"many {number}")
    assert log == ["few 0", "few 1"], "two are with the worker already"
    few.gate.ended()
    assert log == ["few 0", "few 1"], "the other waits until the processor is free"
    few.gate.ended()
    assert log[2:] == ["many 0", "many 1"]
    many.gate.ended()
    assert log[4:] == ["many 2"]


def test_a_round_goes_first_with_all_that_came_before_it() -> None:
    log: list[str] = []
    scheduler = TaskScheduler()
    busy, closing = Stage(scheduler, 0, log, ready=99), Stage(scheduler, 1, log)
    for number in range(4):
        busy.wants(f"busy {number}")
    closing.wants("subtract")
    closing.wants("contribute", in_round=True)
    busy.gate.ended()
    busy.gate.ended()
    assert log[2:] == ["subtract", "contribute"]


def test_the_last_stage_left_waits_for_nobody() -> None:
    log: list[str] = []
    scheduler = TaskScheduler()
    first, second = Stage(scheduler, 0, log), Stage(scheduler, 1, log)
    for number in range(3):
        first.wants(f"first {number}")
        second.wants(f"second {number}")
    first.gate.close()
    assert log[2:] == ["second 0", "second 1", "second 2"]
    first.gate.ended()  # the end of a task of the closed seat changes nothing


def test_a_task_that_comes_to_nothing_holds_nobody_up() -> None:
    log: list[str] = []
    scheduler = TaskScheduler()
    first, second = Stage(scheduler, 0, log), Stage(scheduler, 1, log)
    first.wants("")
    second.wants("second")
    assert log == ["second"]


def test_a_task_started_by_a_task_waits_its_turn() -> None:
    """A start may tell its seat something that makes it bring more; nothing is called within."""
    log: list[str] = []
    Stage(TaskScheduler(), 0, log).wants("bringer")
    assert log == ["bringer", "brought"]
