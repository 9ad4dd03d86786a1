"""How long a stage waits for newcomers: as long as it takes, and no longer than that."""

from __future__ import annotations

import pytest

from protocol.ids import PeerId
from protocol.rounds.keeping_up import (
    GONE_S,
    LEAST_IN_ALL_S,
    LEAST_S,
    MOST_DOUBLINGS,
    SILENT_S,
    UNSEEN_S,
    KeepingUp,
)
from protocol.view import Replica
from tests.support.round_leaders import ME, NEW, B

STEP = 7


class Stage:
    """A stage that closes a step a second after it has planned it, as soon as it may plan."""

    def __init__(self, *proven: PeerId) -> None:
        self.keeping_up = KeepingUp(1024, lambda peer: peer in proven)
        self.step, self.now, self.moved = STEP, 0.0, 0
        self.stands: dict[PeerId, tuple[int, bool]] = {}
        """By newcomer: what it can make, and whether it serves."""

    def look(self, now: float) -> None:
        self.now = now
        there = [
            Replica(peer, follows if serves else 0, serves, follows=follows, moved=self.moved)
            for peer, (follows, serves) in self.stands.items()
        ]
        self.keeping_up.look([Replica(ME, self.step, True), *there], now)

    def close(self) -> None:
        """Plan a step with those newcomers that may observe it, and close it a second later."""
        observers = [p for p, (_, serves) in self.stands.items() if not serves]
        observers = [p for p in observers if self.keeping_up.may_observe(p)]
        self.keeping_up.planned(self.step, observers, self.now)
        self.look(self.now + 1.0)
        self.keeping_up.closed(self.step, self.now)
        self.step += 1

    def held_s(self) -> float:
        """Return how long it waits, second by second, until it may plan."""
        begun = self.now
        while not self.keeping_up.may_plan(self.step, self.now):
            self.look(self.now + 1.0)
        return self.now - begun

    def has(self, peer: PeerId, *, serves: bool = False) -> None:
        """A newcomer has got all rounds."""
        self.stands[peer] = (self.step, serves)
        self.look(self.now)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_without_newcomers_nothing_is_waited_for(stage: Stage) -> None:
    stage.close()
    assert stage.keeping_up.may_plan(stage.step, stage.now)


def test_who_has_the_sums_before_the_step_is_closed_costs_little(stage: Stage) -> None:
    stage.stands[NEW] = (STEP + 1, False)
    stage.close()
    assert stage.held_s() <= 1.0


@pytest.mark.parametrize("late_s", [3.0, 8.0])
def test_sums_take_at_most_half_of_a_line(stage: Stage, late_s: float) -> None:
    stage.stands[NEW] = (STEP, False)
    stage.close()
    closed_at = stage.now
    assert "has not got" in stage.keeping_up.may_plan(stage.step, stage.now).reason
    stage.look(closed_at + late_s)
    assert not stage.keeping_up.may_plan(stage.step, stage.now)
    stage.has(NEW)
    assert stage.held_s() == late_s


def test_one_that_brings_nothing_is_given_up_and_sent_nothing_more(stage: Stage) -> None:
    stage.stands[NEW] = (STEP, False)
    stage.close()
    assert stage.held_s() <= stage.keeping_up.step_s + 1.0
    assert stage.keeping_up.step_s < LEAST_S + 1.0
    assert not stage.keeping_up.may_observe(NEW)
    stage.keeping_up.admitted(NEW)
    assert stage.keeping_up.may_observe(NEW)


def test_one_that_gets_nothing_is_given_up_before_one_that_is_slow() -> None:
    held = list[float]()
    for moves in (False, True):
        stage = Stage()
        stage.keeping_up = KeepingUp(10**9, lambda _peer: False)
        stage.stands[NEW] = (STEP, False)
        stage.close()
        begun = stage.now
        while not stage.keeping_up.may_plan(stage.step, stage.now):
            stage.moved += moves
            stage.look(stage.now + 1.0)
        held.append(stage.now - begun)
    assert held[0] <= SILENT_S + 1.0
    assert SILENT_S < held[1] <= stage.keeping_up.step_s + 1.0


def test_one_that_was_never_seen_is_not_waited_for_long(stage: Stage) -> None:
    stage.keeping_up.planned(stage.step, [NEW], 0.0)
    stage.close()
    stage.keeping_up.planned(stage.step, [NEW], stage.now)
    stage.keeping_up.closed(stage.step, stage.now)
    stage.step += 1
    assert 0.0 < stage.held_s() <= UNSEEN_S


def test_no_newcomer_observes_for_ever(stage: Stage) -> None:
    stage.stands[NEW] = (STEP + 1, False)
    while stage.keeping_up.may_observe(NEW):
        stage.has(NEW)
        stage.close()
    assert LEAST_IN_ALL_S <= stage.now <= stage.keeping_up.in_all_s + 2.0


@pytest.mark.parametrize("again", ["admitted", "away"])
def test_its_time_does_not_begin_anew(stage: Stage, again: str) -> None:
    stage.stands[NEW] = (STEP + 1, False)
    for _ in range(60):
        stage.has(NEW)
        stage.close()
    if again == "admitted":
        stage.keeping_up.admitted(NEW)
    else:
        del stage.stands[NEW]
        stage.look(stage.now + GONE_S / 2)
    while stage.now < stage.keeping_up.in_all_s + 1.0:
        stage.has(NEW)
        stage.close()
    assert not stage.keeping_up.may_observe(NEW)


def slowed(stage: Stage, rounds: int, *, goes: bool) -> float:
    """The share of the time in which newcomers, who all bring nothing, hold a stage up."""
    held, begun = 0.0, stage.now
    for number in range(rounds):
        name = PeerId(f"invented {number}")
        stage.keeping_up.admitted(name)
        stage.stands = {name: (0, False)}
        for _ in range(5):
            stage.close()
            held += stage.held_s()
        if goes:
            stage.stands = {}
            stage.look(stage.now)
            stage.look(stage.now + GONE_S)
    return held / (stage.now - begun)


@pytest.mark.parametrize("goes", [False, True])
def test_newcomers_that_never_come_in_slow_a_stage_less_and_less(
    stage: Stage, *, goes: bool
) -> None:
    first = slowed(stage, 10, goes=goes)
    assert slowed(stage, 2000, goes=goes) < 1 / (1 << MOST_DOUBLINGS)
    assert first > 1 / (1 << MOST_DOUBLINGS)


def test_who_has_worked_is_waited_for_all_the_same() -> None:
    stage = Stage(B)
    slowed(stage, 20, goes=False)
    stage.stands = {B: (0, False)}
    stage.close()
    assert stage.held_s() >= LEAST_S


def test_only_one_that_has_worked_ends_the_distrust() -> None:
    proven = set[PeerId]()
    stage = Stage()
    stage.keeping_up = KeepingUp(1024, proven.__contains__)
    slowed(stage, 20, goes=False)
    stage.look(stage.now + 1e6)
    distrust = stage.keeping_up._in_vain
    assert distrust
    stage.stands = {NEW: (0, False)}
    stage.close()
    stage.has(NEW, serves=True)
    assert stage.keeping_up._in_vain == distrust
    proven.add(NEW)
    stage.look(stage.now)
    assert not stage.keeping_up._in_vain
