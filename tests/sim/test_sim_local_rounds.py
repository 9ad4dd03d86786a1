"""Swarms in local rounds: real executors, simulated time, the machines of every other run.

The protocol knows nothing of local rounds. So I1, I2 and I5 are checked in these worlds as in all;
what is checked here beside them is what is learned, and what deaths and newcomers take of it.
"""

from collections import defaultdict
from typing import Any

import pytest
from msgspec.structs import replace

from client.compute.replica import Replica
from client.lab.reference import train_reference
from client.lab.simulate.training import TrainingWorld
from model_zoo.specs.codec import AveragingCodec
from model_zoo.specs.local_rounds import LocalRounds
from protocol.manifest import Manifest
from tests.support.cases import usual
from tests.support.tensor_swarms import Lab, largest_difference, plan_for, train
from tests.support.texts import corpus_of

STEPS = 12
PER_STEP = 24
INNER = 2


def local_plan(stages: int, **changes: object) -> Manifest:
    usual_plan = plan_for("gpt", stages, STEPS)
    muon = replace(usual_plan.optimizer, name="muon", lr=3e-3)
    rounds = LocalRounds(INNER, **changes)  # type: ignore[arg-type]
    return replace(usual_plan, optimizer=muon, microbatches_per_step=PER_STEP, local_rounds=rounds)


Counted = dict[int, dict[int, list[int]]]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """What each replica counts, in its order, by step and replica."""
    ran: Counted = defaultdict(lambda: defaultdict(list))
    counts: Counted = defaultdict(dict)
    count, update = Replica.count, Replica.update

    def noting(replica: Replica, microbatch: int) -> None:
        ran[replica.version][id(replica)].append(microbatch)
        count(replica, microbatch)

    def noting_all(replica: Replica, *numbers: Any) -> float:
        own = ran[replica.version][id(replica)]
        counts[replica.version][id(replica)] = [one for one in own if one in replica.counted]
        return update(replica, *numbers)

    monkeypatch.setattr(Replica, "count", noting)
    monkeypatch.setattr(Replica, "update", noting_all)
    return counts


@pytest.mark.parametrize(
    ("replicas", "close"),
    usual(1, [(3, 0.05), (1, 1e-4)]),
)
def test_a_swarm_equals_the_reference_given_who_counted_what(
    lab: Lab, counted: Counted, replicas: int, close: float
) -> None:
    """I3. What two have run moved the weights of both, and weighs once: the reference runs it once,
    so swarms in which something is doubled are near it and no more."""
    plan = local_plan(1)
    losses = train(lab.world(plan, replicas))
    corpus = corpus_of(str(lab.text))
    expected = train_reference(
        plan, corpus, threads=1, dealt=lambda step: list(counted[step].values())
    ).losses
    assert largest_difference(losses, expected) < close
    assert losses[-1] < losses[0] - 0.5


def kill_one_per_stage(world: TrainingWorld, until: float) -> None:
    for stage in range(world.config.stages):
        victim = next(peer for peer in world.peers.values() if peer.stage == stage)
        world.after(world.random.uniform(0.2 * until, 0.8 * until), lambda v=victim: world.kill(v))


@pytest.mark.parametrize(
    ("stages", "averaging", "seed"), usual(1, [(1, "q2", 1), (2, "q2", 0), (2, "fp32", 2)])
)
def test_deaths_cost_time_and_hardly_any_learning(
    lab: Lab, stages: int, averaging: AveragingCodec, seed: int
) -> None:
    """I4 in local rounds: a dead replica's inner steps are gone, its microbatches are not. Those
    who are left take more inner steps each, so that they learn no worse."""
    plan = local_plan(stages)
    calm = lab.world(plan, 3, averaging=averaging, seed=seed)
    expected = train(calm)
    world = lab.world(plan, 3, averaging=averaging, seed=seed)
    kill_one_per_stage(world, calm.agenda.now)
    world.run(3600.0)
    assert sum(not peer.alive for peer in world.peers.values()) == stages
    last = [world.losses[step] for step in range(STEPS - 3, STEPS) if step in world.losses]
    assert last
    assert sum(last) / len(last) < 1.05 * sum(expected[-3:]) / 3
    assert expected[-1] < expected[0] - 0.5


def test_newcomers_end_bit_identical(lab: Lab) -> None:
    """They get the version's parameters, begin without moments, and make the same versions."""
    plan = local_plan(2)
    world = lab.world(plan, 2, averaging="q2", seed=3)
    newcomers = [world.join(stage, f"new {stage}") for stage in range(2)]
    losses = train(world)
    for peer in newcomers:
        assert peer.serving
        assert peer.hash == world.hashes[peer.stage, STEPS]
    assert losses[-1] < losses[0] - 0.5
