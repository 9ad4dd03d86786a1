"""Secret sums: real executors and masks, replicas that die in every phase of a round.

The losses are those of the reference trainer, so no mask is left in a sum and none is taken out
twice; bit-identity of the replicas is checked by the world at each version.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from client.compute.payload import HEADER
from client.lab.simulate.peer import SimPeer
from client.lab.simulate.tensors import _decoder
from client.lab.simulate.training import TrainingWorld
from protocol.ids import PeerId
from protocol.wire.messages import (
    Commit,
    Dealing,
    Message,
    Opening,
    Plan,
    Ready,
    Reduced,
    Segment,
)
from tests.support.cases import usual
from tests.support.tensor_swarms import Lab, largest_difference, plan_for, train

STEPS = 12
CLOSE = 5e-4
"""Of losses: the ring rounds to a part in thousands, and error feedback brings the rest."""
PHASES: tuple[type, ...] = (Dealing, Commit, Opening, Plan, Segment, Reduced, Ready)


def secret(lab: Lab, replicas: int, stages: int = 1) -> TrainingWorld:
    plan = plan_for("gpt", stages, STEPS)
    return lab.world(plan, replicas, averaging="ring16", aggregation="secure")


def watch(world: TrainingWorld, seen: Callable[[SimPeer, PeerId, Message, bytes], None]) -> None:
    """Let a test see what is sent, before it is."""
    sends = world.send

    def send(peer: SimPeer, to: PeerId, message: Message, parts: tuple[bytes, ...] = ()) -> None:
        seen(peer, to, message, b"".join(parts))
        if peer.alive:
            sends(peer, to, message, parts)

    world.send = send  # type: ignore[method-assign]


def losses_are_near(lab: Lab, world: TrainingWorld) -> None:
    expected = lab.reference(plan_for("gpt", 1, STEPS))
    got = [world.losses.get(step, expected[step]) for step in range(STEPS)]
    assert len(world.losses) >= STEPS - 2
    assert largest_difference(got, expected) < CLOSE


@pytest.mark.parametrize(("replicas", "stages"), usual(3, [(3, 1), (8, 1), (4, 2), (4, 1)]))
def test_a_secret_sum_is_the_sum(lab: Lab, replicas: int, stages: int) -> None:
    world = secret(lab, replicas, stages)
    losses = train(world)
    expected = lab.reference(plan_for("gpt", stages, STEPS))
    assert largest_difference(losses, expected) < CLOSE


@pytest.mark.parametrize(("replicas", "lost"), usual(1, [(4, 1), (8, 2), (16, 2)]))
@pytest.mark.parametrize("phase", usual(3, PHASES))
def test_replicas_die_in_a_phase(lab: Lab, phase: type, replicas: int, lost: int) -> None:
    """The first of them dies before its first message of the kind in step 3, the second one after
    the first message of the kind that it sends after that."""
    world = secret(lab, replicas)
    dead: list[SimPeer] = []

    def kill(peer: SimPeer, _to: PeerId, message: Message, _payload: bytes) -> None:
        in_phase = isinstance(message, phase) and getattr(message, "step", None) == 3
        if in_phase and len(dead) < lost and peer not in dead:
            dead.append(peer)
            world.kill(peer)

    watch(world, kill)
    world.run(3600.0)
    assert len(dead) == lost
    losses_are_near(lab, world)


@pytest.mark.parametrize("kind", [Commit, Opening])
@pytest.mark.parametrize("replicas", usual(1, [3, 4]))
def test_what_opens_a_sum_is_said_again(lab: Lab, kind: type, replicas: int) -> None:
    """It was lost with a link, or its receiver slept: nobody else can take that one's place."""
    world, lost = secret(lab, replicas), dict[tuple[PeerId, PeerId], Message]()
    sends = world.send

    def send(peer: SimPeer, to: PeerId, message: Message, parts: tuple[bytes, ...] = ()) -> None:
        key = peer.peer, to
        in_question = isinstance(message, kind) and getattr(message, "step", None) == 3
        if in_question and peer.peer != to and key not in lost and (kind is Opening or not lost):
            lost[key] = message  # each opening at first, and the first commit of all
        else:
            sends(peer, to, message, parts)

    world.send = send  # type: ignore[method-assign]
    train(world)
    assert lost
    losses_are_near(lab, world)


@pytest.mark.parametrize("replicas", usual(1, [4, 8]))
@pytest.mark.parametrize("told", [1, 2])
def test_a_leader_dies_when_few_know_its_commit(lab: Lab, told: int, replicas: int) -> None:
    """Those who know it tell the others."""
    world, heard = secret(lab, replicas), list[PeerId]()

    def kill(peer: SimPeer, to: PeerId, message: Message, _payload: bytes) -> None:
        if isinstance(message, Commit) and message.step == 3 and to != peer.peer:
            if len(heard) == told and peer.peer not in heard:
                world.kill(peer)
            heard.append(to)

    watch(world, kill)
    world.run(3600.0)
    assert len(heard) > told
    losses_are_near(lab, world)


def test_newcomers_follow_and_end_bit_identical(lab: Lab) -> None:
    world = secret(lab, 4)
    newcomer = world.join(0, "new")
    train(world)
    assert newcomer.serving
    assert newcomer.hash == world.hashes[0, STEPS]


def test_two_replicas_close_nothing_and_a_third_lets_them_go_on(lab: Lab) -> None:
    world = secret(lab, 2)
    for _ in range(200):
        world.agenda.advance(3600.0)
    seats = [peer.seat for peer in world.peers.values()]
    assert all(seat is not None and seat.step == 0 for seat in seats)
    assert any("a secret sum needs 3 replicas" in seat.why() for seat in seats if seat)
    assert all(not seat.status(1.0).missing for seat in seats if seat)  # nobody is blamed
    world.join(0, "third")
    train(world)


def test_nothing_that_is_sent_shows_a_contribution(lab: Lab) -> None:
    """What an owner gets of a member is as good as random: the bits of its numbers are even, they
    do not resemble what another member or the sum has, and the masked sum hides as well."""
    world = secret(lab, 4)
    sent: list[tuple[type, bytes]] = []

    def keep(_peer: SimPeer, _to: PeerId, message: Message, payload: bytes) -> None:
        if isinstance(message, Segment | Reduced) and message.step == 5:
            sent.append((type(message), _decoder.decode(payload).tensor[HEADER.size :]))

    watch(world, keep)
    train(world)
    assert {kind for kind, _ in sent} == {Segment, Reduced}
    for _, body in sent:
        ones = int.from_bytes(body, "little").bit_count() / (8 * len(body))
        assert abs(ones - 0.5) < 0.01
        assert len(set(body)) == 256
    bodies = [body for kind, body in sent if kind is Segment]
    assert len(set(bodies)) == len(bodies)
