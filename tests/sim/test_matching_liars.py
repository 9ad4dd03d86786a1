"""Property 11: a tenth of the peers claims five times what it can do; what that costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from client.lab.simulate.market.bounds import oracle
from client.lab.simulate.market.catalogue import seat
from client.lab.simulate.market.crowd import Crowd
from client.lab.simulate.market.design import Design
from client.lab.simulate.market.nature import Nature, draw
from client.lab.simulate.market.run import Record, play
from client.lab.simulate.market.setting import Setting
from protocol.ids import PeerId, Stage
from protocol.matching.member import Member
from protocol.matching.timing import MEASURED_S
from tests.support.matching_world import CALM, member
from tests.support.watched_world import WatchedWorld

BOAST = 5.0


class Boasters(Crowd):
    """Every tenth volunteer claims five times its speed and links, until it has been measured."""

    def _newcomer(self, volunteer: int) -> Member:
        honest = super()._newcomer(volunteer)
        if volunteer % 10:
            return honest
        return replace(
            honest,
            flops=BOAST * honest.flops,
            uplink_bytes_per_s=BOAST * honest.uplink_bytes_per_s,
            downlink_bytes_per_s=BOAST * honest.downlink_bytes_per_s,
        )

    def _believe_claims(self, volunteer: int) -> None:
        if volunteer in self._members:
            known, honest = self._members[volunteer], super()._newcomer(volunteer)
            truth = replace(
                known,
                flops=honest.flops,
                uplink_bytes_per_s=honest.uplink_bytes_per_s,
                downlink_bytes_per_s=honest.downlink_bytes_per_s,
                measured_s=MEASURED_S,
            )
            self._note(volunteer, truth)


def share(nature: Nature, record: Record) -> float:
    """Return the throughput over the bound, both summed over time."""
    _, single = oracle(nature).at(record.times_s)
    return float(record.throughput.sum() / single.sum())


WORLDS = [(50, 8, 0.0), (50, 8, 0.2), (120, 16, 0.2)]


@pytest.mark.long
def test_a_tenth_of_liars_costs_five_points_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    """In the mean: with other luck one small world alone may lose or gain more."""
    losses = []
    for count, stages, churn in WORLDS:
        for seed in (1, 2):
            nature = draw(Setting(count, stages, churn, hours=0.5, seed=seed))
            honest, lying = play(nature, seat("ours")), play(nature, Boasters)
            losses.append(share(nature, honest) - share(nature, lying))
    with capsys.disabled():
        print(f"\nliars cost {', '.join(f'{loss:.3f}' for loss in losses)}")
    assert sum(losses) / len(losses) <= 0.05


SLOW, HONEST = 0.1e9, 6


def boasting(seed: int, claim: float) -> WatchedWorld:
    """Return six equals and two that claim to be faster but have a tenth of their speed, on two
    stages; what partners measure of the two is known after five minutes."""
    world = WatchedWorld.equal(2, seed, CALM, Design(dual_homing=False))
    for number in range(HONEST):
        world.join(member(seed * 100 + number, measured_s=1000.0))
    for number in (50, 51):
        world.join(member(seed * 100 + number, claim * SLOW))
        world.after(MEASURED_S, lambda n=number: measure(world, seed * 100 + n))
    return world


def measure(world: WatchedWorld, number: int) -> None:
    known = world.members[member(number).peer]
    world._change(replace(known, flops=SLOW, measured_s=MEASURED_S))


def liars_of(seed: int) -> set[PeerId]:
    return {member(seed * 100 + number).peer for number in (50, 51)}


def honest_replicas(world: WatchedWorld, seed: int) -> tuple[int, ...]:
    """Return how many honest volunteers serve each stage."""
    homes = [m.home for who, m in world.machines.items() if who not in liars_of(seed)]
    return tuple(homes.count(Stage(s)) for s in range(2))


def test_a_claim_counts_twice_the_median_at_most_until_it_is_measured() -> None:
    world = boasting(1, 100.0)
    world.run(30)
    view = world.population()
    honest = view.rate(member(100).peer, Stage(0))
    for liar in liars_of(1):
        assert 1.8 * honest < view.rate(liar, Stage(0)) <= 2 * honest


def test_a_liar_is_corrected_and_its_stage_gets_an_honest_one_instead() -> None:
    """Two liars at one stage look like four; once measured, all is as if they had not lied."""
    mended = 0
    for seed in range(8):
        lied, honest = boasting(seed, 100.0), boasting(seed, 1.0)
        lied.run(60)
        before = honest_replicas(lied, seed)
        for world in (lied, honest):
            world.run(MEASURED_S + 360 - world.now + 1000)
        assert honest_replicas(lied, seed) == (3, 3), f"seed {seed}"
        assert min(lied.levels()) >= 0.95 * min(honest.levels()), f"seed {seed}"
        mended += before != (3, 3)
    assert mended
