"""The protocol with loss, duplicates, reordering and steward crashes finds what one place finds.

The last stage of these worlds fits nowhere. So nothing is ever locked, every place stays tentative,
and the outcome of the distributed deferred acceptance can be compared with the synchronous one.
"""

import math
import random
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec
import pytest

from protocol.ids import PeerId, Stage
from protocol.manifest import Manifest
from protocol.matching.pool import HeldPlace, prefix_cover
from protocol.matching.population import Population
from protocol.matching.steward import Steward
from tests.support.cases import usual
from tests.support.matching_examples import costs, manifest, member, peer
from tests.support.matching_world import CALM, STORMY, Weather, World


class Problem:
    """The matching of a population in which no stage is served yet.

    Args:
        limits: quota and floor of each stage; lambda is the quota unless they are given.
    """

    def __init__(
        self, population: Population, limits: Mapping[Stage, tuple[int, int]] | None = None
    ) -> None:
        fair = population.fair_level, population.redundancy
        self._population = population
        self._limits = limits or {Stage(s): fair for s in population.stages}
        self.stages = list(self._limits)
        self.wishes = {who: self._ranked(who) for who in population.members}
        """Acceptable stages of every volunteer, best first."""

    def _ranked(self, who: PeerId) -> list[Stage]:
        view = self._population
        terms = {"level": 0, "fair": view.fair_level, "replicas": 0, "r": view.redundancy}
        wishes = {s: view.wish(who, s, **terms) for s in self.stages if view.rate(who, s)}
        return sorted(wishes, key=lambda s: (wishes[s], -s), reverse=True)

    def choose(
        self, stage: Stage, peers: Iterable[PeerId]
    ) -> tuple[list[HeldPlace], list[HeldPlace]]:
        """Return whom the stage keeps of some proposers, and whom it lets go."""
        view = self._population
        rated = ((p, view.rate(p, stage), view.score(p, stage, view.fair_level)) for p in peers)
        offers = (HeldPlace(*one, locked=False, expires_at=math.inf) for one in rated)
        return prefix_cover(offers, *self._limits[stage])


def blocking_pairs(
    problem: Problem, assignment: Mapping[PeerId, Stage | None]
) -> list[tuple[PeerId, Stage]]:
    """Return the volunteers and stages that would keep them and that they prefer to theirs:
    without any the matching is stable."""
    found = []
    for who, wishes in problem.wishes.items():
        for stage in wishes:
            if stage == assignment.get(who):
                break
            staff = {other for other, at in assignment.items() if at == stage}
            if who in {kept.peer for kept in problem.choose(stage, staff | {who})[0]}:
                found.append((who, stage))
    return found


def deferred_acceptance(problem: Problem) -> dict[PeerId, Stage | None]:
    """Return the stable matching that is best for the volunteers; at most n S proposals.

    Gale & Shapley 1962, volunteers proposing, with prefix cover as the choice.
    """
    held: dict[Stage, set[PeerId]] = {stage: set() for stage in problem.stages}
    wishes = {who: deque(stages) for who, stages in problem.wishes.items()}
    free = deque(wishes)
    while free:
        who = free.popleft()
        if not wishes[who]:
            continue
        stage = wishes[who].popleft()
        kept, let_go = problem.choose(stage, held[stage] | {who})
        held[stage] = {proposer.peer for proposer in kept}
        free.extend(proposer.peer for proposer in let_go)
    placed: dict[PeerId, Stage | None] = dict.fromkeys(problem.wishes)
    placed.update({who: stage for stage, peers in held.items() for who in peers})
    return placed


SEEDS = usual(1, (range(15), range(15, 300)))
QUICK_MEMBERSHIP = replace(STORMY, gossip_s=(0.02, 0.15))


def unstartable(stages: int) -> Manifest:
    """Return a manifest of unequal stages whose last one nobody has the memory for."""
    *others, last = costs([1e9 * (1 + s % 3) for s in range(stages)])
    too_big = msgspec.structs.replace(last, memory_bytes=1e15)
    return msgspec.structs.replace(manifest(stages), stages=(*others, too_big))


def build(seed: int, weather: Weather) -> World:
    """Return a world of 4 to 9 unequal workers and three peers that can only be stewards."""
    dice = random.Random(seed)
    world = World(unstartable(dice.randint(3, 5)), seed, weather)
    for number in range(dice.randint(4, 9)):
        flops, link = dice.lognormvariate(0, 0.8) * 1e9, dice.lognormvariate(0, 0.8) * 100
        world.join(
            member(
                seed * 100 + number,
                flops,
                uplink_bytes_per_s=link,
                downlink_bytes_per_s=link * 1e6,
                measured_s=1000.0,
            )
        )
    for number in range(50, 53):
        world.join(member(seed * 100 + number, memory_bytes=0.0))
    return world


def found(world: World) -> dict[PeerId, Stage | None]:
    """Return the places that the volunteers believe they have."""
    bids = {who: machine.seats.home.bid for who, machine in world.machines.items()}
    return {who: bid and bid.stage for who, bid in bids.items()}


def final_limits(world: World) -> dict[Stage, tuple[int, int]]:
    """Return the limits that the stewards ended with."""
    return {
        stage: (steward.pool.quota, steward.pool.floor)
        for machine in world.machines.values()
        for stage, steward in machine.stewardships.held.items()
    }


@pytest.fixture
def nobody_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deferred acceptance alone."""
    monkeypatch.setattr(Steward, "_may_help", lambda *_: False)


@pytest.mark.parametrize("weather", [CALM, QUICK_MEMBERSHIP], ids=["calm", "stormy"])
@pytest.mark.parametrize("seeds", SEEDS)
def test_places_equal_those_of_the_synchronous_run(
    seeds: range, weather: Weather, nobody_helps: None
) -> None:
    for seed in seeds:
        world = build(seed, weather)
        world.run(30)
        assert found(world) == deferred_acceptance(Problem(world.population())), f"seed {seed}"


@pytest.mark.parametrize("seeds", SEEDS)
def test_steward_crashes_change_nothing(seeds: range, nobody_helps: None) -> None:
    for seed in seeds:
        world = build(seed, QUICK_MEMBERSHIP)
        world.run(0.5)
        wanted = deferred_acceptance(Problem(world.population()))
        for number in range(50, 52):
            world.crash_after(world.random.uniform(0.5, 4.0), peer(seed * 100 + number))
        world.run(60)
        workers = {who: stage for who, stage in wanted.items() if who in world.machines}
        assert found(world) == workers, f"seed {seed}"


@pytest.mark.parametrize("seeds", SEEDS)
def test_no_blocking_pair_at_quiescence(seeds: range) -> None:
    for seed in seeds:
        world = build(seed, QUICK_MEMBERSHIP)
        world.run(30)
        problem = Problem(world.population(), final_limits(world))
        assert blocking_pairs(problem, found(world)) == [], f"seed {seed}"
