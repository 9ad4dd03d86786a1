"""What a volunteer does with its time, step by step."""

import pytest
from msgspec.structs import astuple

from client.train.machine.time_spent import LEAST_STEPS, WINDOW_S, TimeSpent


class Clock:
    """A volunteer of one stage or two on a clock of its own."""

    def __init__(self, compute_share: int = 100) -> None:
        self.of, self.now = TimeSpent(compute_share), 1000.0

    def serves(self, step: int, stage: int = 0, *, averages: bool = False) -> None:
        self.of.serves(stage, step, self.now, averages=averages)

    def computes(self, seconds: float) -> None:
        self.of.begins(self.now)
        self.now += seconds
        self.of.ends(self.now)

    def step(self, step: int, computing: float, averaging: float, waiting: float) -> None:
        """One step: it waits, computes, and averages."""
        self.serves(step)
        self.now += waiting
        self.computes(computing)
        self.serves(step, averages=True)
        self.now += averaging
        self.serves(step + 1)

    @property
    def shares(self) -> tuple[float, ...] | None:
        """Computing, averaging, waiting, resting."""
        found = self.of.shares(self.now)
        return None if found is None else astuple(found)


def test_a_step_is_computing_averaging_and_waiting() -> None:
    clock = Clock()
    clock.step(0, computing=6, averaging=3, waiting=1)
    assert clock.shares == pytest.approx((0.6, 0.3, 0.1, 0.0))


def test_what_the_worker_does_in_a_round_is_computing() -> None:
    clock = Clock()
    clock.serves(0, averages=True)
    clock.computes(1)
    clock.now += 3
    assert clock.shares == pytest.approx((0.25, 0.75, 0.0, 0.0))


def test_tasks_that_overlap_count_once() -> None:
    clock = Clock()
    clock.serves(0)
    clock.of.begins(clock.now)
    clock.computes(2)
    clock.now += 2
    clock.of.ends(clock.now)
    clock.now += 4
    assert clock.shares == pytest.approx((0.5, 0.0, 0.5, 0.0))


def test_with_a_limit_a_part_of_each_task_is_rest() -> None:
    clock = Clock(compute_share=25)
    clock.step(0, computing=8, averaging=1, waiting=1)
    assert clock.shares == pytest.approx((0.2, 0.1, 0.1, 0.6))


def test_nothing_is_said_while_no_stage_is_served_and_none_of_that_counts() -> None:
    clock = Clock()
    assert clock.shares is None
    clock.serves(0)
    assert clock.shares is None
    clock.computes(5)
    clock.of.leaves(0, clock.now)
    assert clock.shares is None
    clock.now += 1000
    clock.serves(0)
    clock.now += 5
    assert clock.shares == pytest.approx((0.5, 0.0, 0.5, 0.0))


def test_one_round_among_several_stages_is_averaging() -> None:
    clock = Clock()
    clock.serves(0, stage=0)
    clock.serves(0, stage=1, averages=True)
    clock.now += 1
    clock.of.leaves(1, clock.now)
    clock.now += 1
    assert clock.shares == pytest.approx((0.0, 0.5, 0.5, 0.0))


def test_of_long_steps_the_last_ones_count() -> None:
    clock = Clock()
    clock.step(0, computing=WINDOW_S, averaging=0, waiting=0)
    for step in range(1, 1 + LEAST_STEPS):
        clock.step(step, computing=0, averaging=WINDOW_S, waiting=0)
    assert clock.shares == pytest.approx((0.0, 1.0, 0.0, 0.0))


def test_of_short_steps_those_of_a_minute_count() -> None:
    clock = Clock()
    for step in range(200):
        clock.step(step, computing=1, averaging=0, waiting=0)
    for step in range(200, 230):
        clock.step(step, computing=0, averaging=0, waiting=1)
    assert clock.shares == pytest.approx((0.5, 0.0, 0.5, 0.0))
    assert len(clock.of._steps) == WINDOW_S + 1


def test_what_hangs_now_counts_as_well() -> None:
    clock = Clock()
    clock.step(0, computing=WINDOW_S, averaging=0, waiting=0)
    clock.now += 3 * WINDOW_S
    assert clock.shares == pytest.approx((0.25, 0.0, 0.75, 0.0))
