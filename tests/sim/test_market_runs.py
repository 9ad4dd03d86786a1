"""Whole runs: crashes act at once and are known late, and nobody beats the bound."""

from __future__ import annotations

import numpy as np
import pytest

from client.lab.simulate.agenda import Agenda
from client.lab.simulate.market.bounds import oracle
from client.lab.simulate.market.catalogue import BASELINES, seat
from client.lab.simulate.market.fleet import Fleet
from client.lab.simulate.market.nature import Nature, draw
from client.lab.simulate.market.policies.policy import Policy
from client.lab.simulate.market.run import RESOLUTION_S, play
from client.lab.simulate.market.setting import DETECTION_S, Setting

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
