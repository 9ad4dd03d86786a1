"""Swarms of real engines in which a member signs one contribution and sends another one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from client.compute.payload import seal, sealed_digest
from client.node.status import take_snapshot
from protocol.audit.commitment import SEGMENT, piece_of
from protocol.evidence.proof import check
from protocol.ids import PeerId
from protocol.wire.messages import Message, Segment
from tests.support.cases import usual
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm

Sends = Callable[[PeerId, Message, bytes], tuple[Message, bytes]]


def peer(volunteer: Volunteer) -> PeerId:
    return volunteer.engine.signer.peer


def out(volunteer: Volunteer) -> set[PeerId]:
    """Whom a proof has convicted before its eyes."""
    verdicts = volunteer.engine.membership.verdicts
    return {verdict.culprit for verdict in verdicts if verdict.stage is None}


def voted_out(volunteer: Volunteer) -> set[PeerId]:
    """Whom a majority has convicted before its eyes."""
    return {verdict.culprit for verdict in volunteer.engine.membership.verdicts.voted}


async def staffed(swarm: TestSwarm, *stages: int) -> list[Volunteer]:
    volunteers = [await swarm.add(stage) for stage in stages]
    await swarm.until(
        lambda: all(v.serves(stage) for v, stage in zip(volunteers, stages, strict=True))
    )
    swarm.start()
    return volunteers


def distort(liar: Volunteer, distorted: Sends) -> None:
    """Send what ``distorted`` makes of each message from now on."""
    send = liar.engine.send

    def lying(to: PeerId, message: Message, payload: bytes = b"") -> None:
        send(to, *distorted(to, message, payload))

    liar.engine.send = lying  # type: ignore[method-assign]


def another(payload: bytes) -> bytes:
    """A sound payload of other numbers."""
    damaged = bytearray(payload)
    damaged[-1] ^= 1
    seal(damaged)
    return bytes(damaged)


def turned_around(liar: Volunteer, *, signs: bool) -> Sends:
    """Contribute something else than was committed to."""

    def distorted(_to: PeerId, message: Message, payload: bytes) -> tuple[Message, bytes]:
        if not isinstance(message, Segment):
            return message, payload
        assert message.signature
        other = another(payload)
        if signs:
            body = piece_of(message, sealed_digest(other))
            assert body is not None
            message = replace(message, signature=liar.engine.sign(SEGMENT, body).signature)
        return message, other

    return distorted


@pytest.mark.parametrize(
    "stages", usual(1, [((0, 1, 1),), ((0, 1, 1, 1),)]), ids=["of two", "of three"]
)
async def test_who_sends_something_else_than_it_signed_is_out_everywhere(
    tmp_path, stages: tuple[int, ...]
) -> None:
    async with open_swarm(tmp_path, audit=20, steps=60) as swarm:
        *honest, liar = await staffed(swarm, *stages)
        first = honest[0]
        await swarm.until(lambda: first.step(0) >= 3)
        distort(liar, turned_around(liar, signs=True))
        await swarm.until(lambda: all(out(one) == {peer(liar)} for one in honest))
        assert not swarm.hub.linked(peer(liar))
        step = first.step(0)
        await swarm.until(lambda: first.step(0) >= step + 5)
        assert all(out(one) == {peer(liar)} for one in honest)
        for one in honest:
            [proof] = one.engine.membership.verdicts.proofs
            assert check(proof, swarm.file.swarm).culprit == peer(liar)
            assert one.engine.internal_errors == 0
        for one in honest:
            now = take_snapshot(one.engine, one.held_stages, 0.0, stopping=False)
            assert [out.peer for out in now.expelled] == [peer(liar)], "also where some voted, too"
            assert "contributed something else" in now.expelled[0].reason


async def test_who_does_not_sign_what_it_sends_is_refused_and_voted_out(tmp_path) -> None:
    """Nobody else can be shown what it sent: a majority has to say so."""
    async with open_swarm(tmp_path, audit=20, steps=60) as swarm:
        *honest, liar = await staffed(swarm, 0, 1, 1, 1)
        first = honest[0]
        await swarm.until(lambda: first.step(0) >= 3)
        distort(liar, turned_around(liar, signs=False))
        await swarm.until(lambda: all(voted_out(one) == {peer(liar)} for one in honest))
        assert not any(map(out, honest))
        step = first.step(0)
        await swarm.until(lambda: first.step(0) >= step + 5)
