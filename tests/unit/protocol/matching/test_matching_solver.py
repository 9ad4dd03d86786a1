"""On unit rates and integer quotas: the outcome of a published hospital-resident solver."""

from __future__ import annotations

import random
import warnings

from matching.games import HospitalResident

from client.lab.simulate.market.stability import BlockingPair, Instance, blocking_pairs
from protocol.ids import PeerId, Stage
from protocol.matching.choice import Proposer
from protocol.matching.pool import Limits
from tests.support.matching_examples import peer
from tests.support.synchronous_matching import deferred_acceptance

UNIT = 1_000_000


def instance(seed: int) -> tuple[Instance, dict[Stage, list[PeerId]]]:
    """Return random strict preferences of both sides with random integer quotas."""
    dice = random.Random(seed)
    peers = [peer(n) for n in range(dice.randint(2, 12))]
    stages = [Stage(s) for s in range(dice.randint(2, 5))]
    wishes = {p: tuple(dice.sample(stages, dice.randint(1, len(stages)))) for p in peers}
    orders = {s: dice.sample(peers, len(peers)) for s in stages}
    offers = {
        (p, s): Proposer(p, UNIT, len(peers) - order.index(p))
        for s, order in orders.items()
        for p in peers
    }
    limits = {s: Limits(dice.randint(1, 4) * UNIT, 1) for s in stages}
    return Instance(wishes, offers, limits), orders


def solved_elsewhere(problem: Instance, orders: dict[Stage, list[PeerId]]) -> dict[str, int | None]:
    wanted_by = {
        s: [p for p in order if s in problem.preferences[p]] for s, order in orders.items()
    }
    stages = [s for s, peers in wanted_by.items() if peers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        game = HospitalResident.create_from_dictionaries(
            {p: list(map(int, wishes)) for p, wishes in problem.preferences.items()},
            {int(s): wanted_by[s] for s in stages},
            {int(s): problem.limits[s].quota // UNIT for s in stages},
        )
        outcome = game.solve(optimal="resident")
    placed: dict[str, int | None] = dict.fromkeys(problem.preferences)
    for stage, residents in outcome.items():
        placed.update({resident.name: stage.name for resident in residents})
    return placed


def test_equals_the_resident_optimal_matching() -> None:
    for seed in range(600):
        problem, orders = instance(seed)
        assert deferred_acceptance(problem) == solved_elsewhere(problem, orders), f"seed {seed}"


def test_the_outcome_has_no_blocking_pair_and_a_disturbed_one_has() -> None:
    disturbed = 0
    for seed in range(100):
        problem, _ = instance(seed)
        placed = deferred_acceptance(problem)
        assert blocking_pairs(problem, placed) == [], f"seed {seed}"
        happy = next(p for p, stage in placed.items() if stage == problem.preferences[p][0])
        pairs = blocking_pairs(problem, placed | {happy: None})
        assert BlockingPair(happy, problem.preferences[happy][0], None) in pairs
        disturbed += len(pairs) > 0
        assert blocking_pairs(problem, placed | {happy: None}, frozenset({*placed})) == []
    assert disturbed == 100
