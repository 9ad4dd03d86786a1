"""Whole runs: nature is the same for all, crashes act at once and are known late, nobody beats the
bound, and the policies come out in the order that is known of them."""

from __future__ import annotations

import numpy as np
import pytest

from client.lab.simulate.agenda import Agenda
from client.lab.simulate.market.bounds import oracle
from client.lab.simulate.market.catalogue import BASELINES, seat
from client.lab.simulate.market.compare import compare
from client.lab.simulate.market.fleet import Fleet
from client.lab.simulate.market.nature import Nature, draw
from client.lab.simulate.market.policies.policy import Policy
from client.lab.simulate.market.run import RESOLUTION_S, play
from client.lab.simulate.market.score import recoveries_s
from client.lab.simulate.market.setting import DETECTION_S, STEP_S, Setting

SINGLE = [name for name in BASELINES if "dual" not in name]


@pytest.mark.parametrize("name", SINGLE)
def test_no_policy_of_one_stage_each_exceeds_the_bound_at_any_moment(name: str) -> None:
    nature = draw(Setting(40, 6, 0.5, hours=1.5, seed=4))
    # Reckoned at the moments of observation, so that both see the same volunteers.
    bounds = oracle(nature, RESOLUTION_S)
    record = play(nature, seat(name))
    _, single = bounds.at(record.times_s)
    assert (record.throughput <= single * (1 + 1e-6) + 1).all()
    assert record.throughput.max() > 0 or name in ("random", "gale-shapley-static")


@pytest.mark.parametrize("name", BASELINES)
def test_runs_are_deterministic(name: str) -> None:
    one, other = (play(draw(Setting(30, 4, 0.5, hours=1)), seat(name)) for _ in range(2))
    assert one.throughput.tolist() == other.throughput.tolist()
    assert one.effort == other.effort


def test_the_known_order_of_the_policies() -> None:
    nature = draw(Setting(200, 8, 0.2, hours=2, seed=5))
    names = ("gale-shapley-static", "random", "greedy-join", "value-join-dual")
    shares = [figures.share for figures in compare(nature, names)]
    assert shares == sorted(shares)
    assert shares[-1] > 0.85


class _Watcher:
    """Places everybody at stage 0 and notes what it is told when."""

    said = None

    def __init__(self, nature: Nature, agenda: Agenda, fleet: Fleet) -> None:
        self.agenda, self.fleet = agenda, fleet
        self.told: list[tuple[float, int]] = []

    def joined(self, volunteer: int) -> None:
        self.fleet.fetch(volunteer, 0)

    def departed(self, volunteer: int) -> None:
        self.told.append((self.agenda.now, volunteer))

    def loaded(self, volunteer: int, stage: int) -> None:
        self.fleet.serve(volunteer, stage)


def _lonely(crash: bool) -> Nature:
    """One volunteer that goes after half an hour, in a pipeline of one stage."""
    return Nature(
        setting=Setting(1, 1, hours=1),
        joins_s=np.array([10.0]),
        leaves_s=np.array([1800.0]),
        crashes=np.array([crash]),
        speed=np.array([1.0]),
        bytes_per_s=np.array([12.5e6]),
    )


@pytest.mark.parametrize(("crash", "delay_s"), [(True, DETECTION_S), (False, 0.0)])
def test_throughput_falls_at_once_and_crashes_are_known_late(crash: bool, delay_s: float) -> None:
    seats: list[_Watcher] = []

    def make(nature: Nature, agenda: Agenda, fleet: Fleet) -> Policy:
        seats.append(_Watcher(nature, agenda, fleet))
        return seats[0]

    record = play(_lonely(crash), make)
    falls_at = record.times_s[np.flatnonzero(record.throughput == 0)]
    assert falls_at[falls_at > 100].min() <= 1800 + RESOLUTION_S
    assert seats[0].told == [(1800 + delay_s, 0)]
    assert record.losses_s.tolist() == [1800]


def _hands(begun_s: float) -> tuple[Agenda, Fleet, list[tuple[float, int]]]:
    """A fleet with one volunteer, at a moment; what is loaded is served."""
    agenda, done = Agenda(0), []
    nature = draw(Setting(1, 4))

    def loaded(volunteer: int, stage: int) -> None:
        fleet.serve(volunteer, stage)
        done.append((agenda.now, stage))

    fleet = Fleet(nature, agenda, loaded)
    fleet.enter(0)
    agenda.at(begun_s, lambda: None)
    agenda.advance(begun_s)
    return agenda, fleet, done


def _run(agenda: Agenda) -> None:
    while agenda.advance(1e9):
        pass


def test_stages_are_fetched_one_after_the_other_and_served_until_dropped() -> None:
    agenda, fleet, done = _hands(STEP_S)
    fleet.fetch(0, 1)
    fleet.fetch(0, 2)
    assert fleet.fetching(0) == [1, 2]
    _run(agenda)
    first, second = (at_s for at_s, _ in done)
    assert second - STEP_S == pytest.approx(2 * (first - STEP_S))
    assert fleet.serving(0) == (1, 2)
    fleet.drop(0, 1)
    assert fleet.serving(0) == (2,)
    assert (fleet.effort.downloads, fleet.effort.moves) == (2, 1)


def test_recovery_is_counted_from_a_felt_loss_until_throughput_is_back() -> None:
    times = np.arange(2.0, 42.0, 2.0)
    share = np.ones(20)
    share[5:9] = 0.5  # 12 s to 18 s
    # The first is felt, the second is in its dent, the third is not felt.
    assert recoveries_s(times, share, np.array([11.0, 13.0, 30.0])) == [20.0 - 11.0]


def test_a_loss_that_is_never_mended_counts_until_the_end() -> None:
    times = np.arange(2.0, 22.0, 2.0)
    share = np.where(times > 10, 0.1, 1.0)
    assert recoveries_s(times, share, np.array([10.5])) == [22.0 - 10.5]
