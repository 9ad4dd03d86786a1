"""Partitions: never two certificates for one matter, and a minority neither calls nor signs."""

from __future__ import annotations

from collections import Counter

from protocol.ids import Stage
from protocol.matching.exchange import bodies
from protocol.matching.exchange.bodies import COMMIT, Ballot, Epoch
from tests.support.certificates import DETECTED_S, certificates, published
from tests.support.uneven_world import STAGES, uneven_world


def test_two_certificates_for_one_matter_never_exist() -> None:
    certified = 0
    for seed in range(12):
        world = uneven_world(seed)
        part = set(world.random.sample(sorted(world.machines), 5 + seed % 7))
        world.run(world.random.uniform(4.0, 8.0))
        world.cut(part)
        world.run(30)
        world.heal()
        world.run(30)
        found = certificates(world)
        certified += len(found)
        assert all(len(digests) == 1 for digests in found.values()), f"seed {seed}"
    assert certified > 12


def test_a_minority_neither_calls_nor_signs_and_the_majority_goes_on() -> None:
    decided = 0
    for seed in range(12):
        world = uneven_world(seed)
        part = set(world.random.sample(sorted(world.machines), 7))  # of 17
        world.cut(part)
        cut_at = world.now
        world.run(50)
        late = [(who, body) for at, who, body in published(world) if at > cut_at + DETECTED_S]
        for who, body in late:
            assert who not in part or isinstance(body, Ballot) or _is_abort(body), f"seed {seed}"
        decided += any(isinstance(body, Epoch) and body.phase == COMMIT for _, body in late)
    assert decided > 3


def _is_abort(body: bodies.Spread) -> bool:
    return isinstance(body, Epoch) and body.phase == bodies.ABORT


def test_after_healing_there_is_one_matching() -> None:
    for seed in range(6):
        world = uneven_world(seed)
        part = set(world.random.sample(sorted(world.machines), 6))
        world.run(5.5)
        world.cut(part)
        world.run(40)
        world.heal()
        world.run(150)
        stewards = Counter(stage for m in world.machines.values() for stage in m.stewardships)
        assert stewards == {Stage(s): 1 for s in range(STAGES)}, f"seed {seed}"
        posted = {
            stage: set(steward.pool.places)
            for machine in world.machines.values()
            for stage, steward in machine.stewardships.items()
        }
        for who, stage in world.matching().items():
            homes = [s for s, places in posted.items() if who in places]
            assert homes == ([] if stage is None else [stage]), f"seed {seed}"
