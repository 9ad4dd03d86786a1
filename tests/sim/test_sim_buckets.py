"""Secret sums of buckets: real executors, members that die in every phase, and one that lies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from client.compute.masked_averaging import MaskedAverager
from client.lab.simulate.peer import SimPeer
from client.lab.simulate.tensors import TensorWorker
from client.lab.simulate.training import TrainingWorld
from model_zoo.reference import TrainingPlan
from protocol.ids import PeerId
from protocol.wire.messages import Commit, Dealing, Message, Opening, Reduced, Segment
from tests.support.cases import usual
from tests.support.tensor_swarms import Lab, largest_difference, plan_for, train

STEPS = 8
PER_STEP = 24
"""Two microbatches for each of twelve replicas."""
NEAR = 5e-4
"""Of losses: a bucket may have done less than its share, which clipping then makes up for."""
PHASES: tuple[type, ...] = (Dealing, Opening, Segment, Reduced, Commit)


def plan() -> TrainingPlan:
    return replace(plan_for("gpt", 1, STEPS), microbatches_per_step=PER_STEP)


def world_of(lab: Lab, replicas: int, rule: str = "secure-clipping") -> TrainingWorld:
    return lab.world(plan(), replicas, averaging="ring16", aggregation=rule)


def far_from_reference(lab: Lab, world: TrainingWorld) -> float:
    expected = lab.reference(plan())
    assert len(world.losses) >= STEPS - 2
    return largest_difference(
        [world.losses.get(step, expected[step]) for step in range(STEPS)], expected
    )


@pytest.mark.parametrize("replicas", usual(1, [4, 12, 8]))
def test_without_a_liar_a_run_is_that_of_the_exact_sum(lab: Lab, replicas: int) -> None:
    world = world_of(lab, replicas)
    train(world)
    assert far_from_reference(lab, world) < NEAR


@pytest.mark.parametrize("phase", usual(2, PHASES))
@pytest.mark.parametrize(("replicas", "lost"), usual(1, [(8, 2), (12, 2)]))
def test_members_die_in_a_phase(lab: Lab, phase: type, replicas: int, lost: int) -> None:
    """Of eight seven are left, which have one sum of all."""
    world = world_of(lab, replicas)
    dead: list[SimPeer] = []
    sends = world.send

    def send(peer: SimPeer, to: PeerId, message: Message, parts: tuple[bytes, ...] = ()) -> None:
        in_phase = isinstance(message, phase) and getattr(message, "step", None) == 3
        if in_phase and len(dead) < lost and peer not in dead:
            dead.append(peer)
            world.kill(peer)
        if peer.alive:
            sends(peer, to, message, parts)

    world.send = send  # type: ignore[method-assign]
    world.run(3600.0)
    assert len(dead) == lost
    assert far_from_reference(lab, world) < NEAR


def test_newcomers_follow_and_end_bit_identical(lab: Lab) -> None:
    world = world_of(lab, 8)
    newcomer = world.join(0, "new")
    train(world)
    assert newcomer.serving
    assert newcomer.hash == world.hashes[0, STEPS]


def lied(lab: Lab, rule: str, monkeypatch: pytest.MonkeyPatch) -> float:
    """One of twelve contributes its gradient sum x -10; return how far the losses are off."""
    world = world_of(lab, 12, rule)
    liar = next(iter(world.peers.values())).worker
    assert isinstance(liar, TensorWorker)
    stage = liar._executor._stage
    assert stage is not None
    averager = stage.averager
    assert isinstance(averager, MaskedAverager)
    honest = averager._with_residual
    monkeypatch.setattr(averager, "_with_residual", lambda a, b: honest(a, b).mul_(-10.0))
    train(world)
    return far_from_reference(lab, world)


@pytest.mark.slow
def test_a_liar_spoils_its_bucket_and_not_the_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    clipped, exact = (lied(lab, rule, monkeypatch) for rule in ("secure-clipping", "secure"))
    assert clipped < exact / 5
