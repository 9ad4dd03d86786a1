"""Tasks on their way to the workers: in order, one stage at a time, without waiting when alone."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.train.workers.task_scheduler import (
    MAX_PASSED_OVER,
    TASKS_PER_TURN,
    Gate,
    TaskScheduler,
)


class Stage:
    """A seat that only counts what was started; its tasks are names, and an empty one comes to
    nothing."""

    def __init__(
        self, scheduler: TaskScheduler, log: list[str], ready: int = 0, rate: float = 1.0
    ) -> None:
        self.gate: Gate = scheduler.open(self.start, lambda: rate, lambda: ready)
        self._log = log

    def wants(self, *names: Any, in_round: bool = False) -> None:
        for name in names:
            self.gate.enter(name, in_round=in_round)

    def start(self, name: Any) -> bool:
        if name == "bringer":
            self.wants("brought")
        self._log += [name] if name else []
        return bool(name)


def test_two_stages_take_turns_by_backlog() -> None:
    log: list[str] = []
    scheduler = TaskScheduler()
    few, many = Stage(scheduler, log), Stage(scheduler, log, ready=10)
    few.wants("few 0", "few 1", "few 2")
    many.wants("many 0", "many 1", "many 2")
    assert log == ["few 0", "few 1"], "two are with the worker already"
    few.gate.ended()
    assert log == ["few 0", "few 1"], "the other waits until the processor is free"
    few.gate.ended()
    assert log[2:] == ["many 0", "many 1"]
    many.gate.ended()
    assert log[4:] == ["many 2"]


@pytest.mark.parametrize(
    ("one", "other", "first"),
    [
        ((2.0, 10), (4.0, 6), "other"),
        ((2.0, 10), (4.0, 4), "one"),
        ((2.0, 3), (0.0, 4), "other"),  # not measured yet: it counts as the fastest
        ((0.0, 3), (0.0, 2), "one"),
    ],
)
def test_the_larger_weight_goes_first(
    one: tuple[float, int], other: tuple[float, int], first: str
) -> None:
    log: list[str] = []
    scheduler = TaskScheduler()
    busy = Stage(scheduler, log)
    busy.wants("busy")
    for name, (rate, backlog) in {"one": one, "other": other}.items():
        Stage(scheduler, log, backlog - 1, rate).wants(name)
    busy.gate.ended()
    assert log == ["busy", first]


def test_a_round_goes_first_with_all_that_came_before_it() -> None:
    log: list[str] = []
    scheduler = TaskScheduler()
    busy, closing = Stage(scheduler, log, ready=99), Stage(scheduler, log)
    busy.wants("busy 0", "busy 1", "busy 2", "busy 3")
    closing.wants("subtract")
    closing.wants("contribute", in_round=True)
    busy.gate.ended()
    busy.gate.ended()
    assert log[2:] == ["subtract", "contribute"]


def test_a_worker_that_runs_several_at_a_time_gets_one_more() -> None:
    log: list[str] = []
    scheduler = TaskScheduler(at_once=3)
    Stage(scheduler, log)
    Stage(scheduler, log).wants(*["task"] * 9)
    assert log == ["task"] * 4


def test_the_last_stage_left_waits_for_nobody() -> None:
    log: list[str] = []
    scheduler = TaskScheduler()
    first, second = Stage(scheduler, log), Stage(scheduler, log)
    for number in range(3):
        first.wants(f"first {number}")
        second.wants(f"second {number}")
    first.gate.close()
    assert log[2:] == ["second 0", "second 1", "second 2"]
    first.gate.ended()  # the end of a task of the closed seat changes nothing


def test_a_stage_that_is_given_up_keeps_nobody_waiting() -> None:
    log: list[str] = []
    scheduler = TaskScheduler()
    first, second = Stage(scheduler, log), Stage(scheduler, log)
    Stage(scheduler, log)
    first.wants("first", "first")
    second.wants("second", "second", "second")
    first.gate.close()
    first.gate.ended()  # its worker's last word
    assert log[2:] == ["second", "second"]


def test_a_task_that_comes_to_nothing_holds_nobody_up() -> None:
    log: list[str] = []
    scheduler = TaskScheduler()
    first, second = Stage(scheduler, log), Stage(scheduler, log)
    first.wants("")
    second.wants("second")
    assert log == ["second"]


def test_a_task_started_by_a_task_waits_its_turn() -> None:
    """A start may tell its seat something that makes it bring more; nothing is called within."""
    log: list[str] = []
    Stage(TaskScheduler(), log).wants("bringer")
    assert log == ["bringer", "brought"]


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.integers(0, 1000)), min_size=2, max_size=3),
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["task", "round", "end"]))),
)
def test_one_stage_at_a_time_and_nobody_waits_for_ever(
    stages: list[tuple[float, int]], steps: list[tuple[int, str]]
) -> None:
    """Whatever comes and ends: while a stage waits something runs, a few tasks of one stage, and
    two stages pass it over for so many tasks at most, whatever their weights and rounds."""
    log: list[int] = []
    scheduler, running, passed_over = TaskScheduler(), Counter[int](), Counter[int]()
    gates: list[Gate] = []
    for place, (rate, ready) in enumerate(stages):
        start = [lambda _, place=place: log.append(place) or True]
        gates.append(scheduler.open(start[0], lambda rate=rate: rate, lambda ready=ready: ready))
    for which, what in steps:
        seen = len(log)
        if what != "end":
            gates[which].enter(None, in_round=what == "round")  # type: ignore[arg-type]
        elif running[which]:
            running[which] -= 1
            gates[which].ended()
        for started in log[seen:]:
            running[started] += 1
            waits = {place for place, gate in enumerate(gates) if gate.waiting} - {started}
            passed_over = Counter({place: passed_over[place] + 1 for place in waits})
        busy = [place for place in running if running[place]]
        assert len(busy) <= 1
        assert running.total() <= TASKS_PER_TURN
        assert busy or not any(gate.waiting for gate in gates)
        assert max(passed_over.values(), default=0) <= MAX_PASSED_OVER + 1


@settings(max_examples=50)
@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=3),
    st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3),
)
def test_shares_follow_the_work_that_comes(arrivals: list[int], rates: list[float]) -> None:
    """Per round so many tasks come as can be done: every stage gets just the share it needs."""
    log: list[str] = []
    scheduler, rounds, ended = TaskScheduler(), 120, 0
    stages = [Stage(scheduler, log, rate=rate) for rate, _ in zip(rates, arrivals, strict=False)]
    for _ in range(rounds):
        for place, tasks in enumerate(arrivals):
            stages[place].wants(*[str(place)] * tasks)
        for _ in range(sum(arrivals)):
            stages[int(log[ended])].gate.ended()
            ended += 1
    for place, tasks in enumerate(arrivals):
        assert log[:ended].count(str(place)) == pytest.approx(tasks * rounds, rel=0.2)
