"""Held-out evaluation in seeded swarms: it costs what it says, and no version waits for it.

A task takes 0.3 s, give or take a third, a held-out one as well; 24 microbatches a step, so an
evaluation has six. Measured with the seeds below, five steps, the run with an evaluation of *every*
version beside the run without takes 1.10 and 1.12 times as long with one replica for each of two
stages (one path), and 1.22 and 1.25 times with three (three paths). At the default interval of 50
steps that is a fiftieth: 0.2 % and 0.5 %.
"""

from collections.abc import Sequence
from statistics import mean

import pytest

from client.lab.simulate.peer import SimPeer
from client.lab.simulate.seats import Parts
from client.lab.simulate.training import TrainingWorld, WorldConfig
from protocol.manifest import Evaluation
from protocol.seat.effects import HeldOutLoss, SeatEffect

PER_STEP, STEPS = 24, 5
EACH = Evaluation(every=1, microbatches=6, tokens=6, size_bytes=6)
LIMIT_S = 3600.0


class EvaluatedWorld(TrainingWorld):
    """Notes the numbers of each version."""

    numbers: dict[int, int]

    def perform(self, peer: SimPeer, effects: Sequence[SeatEffect], parts: Parts = ()) -> None:
        for effect in effects:
            if isinstance(effect, HeldOutLoss):
                self.numbers[effect.version] = self.numbers.get(effect.version, 0) + 1
                assert peer.seat is not None
                assert peer.seat.step == effect.version
        super().perform(peer, effects, parts)


def trained(
    seed: int, stages: int, replicas: int, terms: Evaluation | None, *, kill: bool = False
) -> EvaluatedWorld:
    EvaluatedWorld.numbers = {}
    config = WorldConfig(
        stages, replicas, PER_STEP, STEPS, seed=seed, compute_s=(0.2, 0.4), evaluation=terms
    )
    world = EvaluatedWorld(config)
    world.start_clock()
    if kill:
        world.after(20.0, lambda: world.kill(list(world.peers.values())[replicas]))
    world.run(LIMIT_S)
    return world


@pytest.mark.parametrize(("stages", "replicas"), [(1, 1), (2, 1), (2, 3), (3, 2)])
def test_every_version_gets_its_numbers(stages: int, replicas: int) -> None:
    for seed in range(2):
        world = trained(seed, stages, replicas, EACH)
        assert set(range(STEPS)) <= set(world.numbers), world.numbers
        assert max(world.numbers.values()) <= min(3, replicas)


@pytest.mark.parametrize(("stages", "replicas", "most"), [(2, 1, 1.35), (2, 3, 1.35)])
def test_even_an_evaluation_of_every_version_costs_no_more_than_its_work(
    stages: int, replicas: int, most: float
) -> None:
    ratios = []
    for seed in range(2):
        with_it = trained(seed, stages, replicas, EACH).agenda.now
        ratios.append(with_it / trained(seed, stages, replicas, None).agenda.now)
    print(stages, replicas, ratios)
    assert mean(ratios) < most


def test_a_death_costs_a_number_and_stops_nobody() -> None:
    for seed in range(2):
        world = trained(seed, 2, 3, EACH, kill=True)
        assert len(world.numbers) >= STEPS - 2
