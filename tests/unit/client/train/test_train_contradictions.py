"""Swarms of real engines in which a member signs one contribution and sends another one."""

import pytest
from msgspec.structs import replace

from client.compute.payload import seal, sealed_digest
from protocol.audit.commitment import SEGMENT, piece_of
from protocol.evidence.proof import check
from protocol.ids import PeerId
from protocol.wire.messages import Message, Segment
from tests.support.cases import usual
from tests.support.train_swarm import Distortion, Volunteer, open_swarm


def out(volunteer: Volunteer) -> set[PeerId]:
    """Whom a proof has convicted before its eyes."""
    verdicts = volunteer.engine.membership.verdicts
    return {verdict.culprit for verdict in verdicts if verdict.stage is None}


def voted_out(volunteer: Volunteer) -> set[PeerId]:
    """Whom a majority has convicted before its eyes."""
    return {verdict.culprit for verdict in volunteer.engine.membership.verdicts.voted}


def another(payload: bytes) -> bytes:
    """A sound payload of other numbers."""
    damaged = bytearray(payload)
    damaged[-1] ^= 1
    seal(damaged)
    return bytes(damaged)


def turned_around(liar: Volunteer, *, signs: bool) -> Distortion:
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
        *honest, liar = await swarm.staffed(*stages)
        first = honest[0]
        await swarm.until(lambda: first.step(0) >= 3)
        liar.distort(turned_around(liar, signs=True))
        await swarm.until(lambda: all(out(one) == {liar.peer} for one in honest))
        assert not swarm.hub.linked(liar.peer)
        step = first.step(0)
        await swarm.until(lambda: first.step(0) >= step + 5)
        assert all(out(one) == {liar.peer} for one in honest)
        for one in honest:
            [proof] = one.engine.membership.verdicts.proofs
            assert check(proof, swarm.file.swarm).culprit == liar.peer
            assert one.engine.internal_errors == 0
            now = one.shown()
            assert [out.peer for out in now.expelled] == [liar.peer], "also where some voted, too"
            assert "contributed something else" in now.expelled[0].reason


async def test_who_does_not_sign_what_it_sends_is_refused_and_voted_out(tmp_path) -> None:
    """Nobody else can be shown what it sent: a majority has to say so."""
    async with open_swarm(tmp_path, audit=20, steps=60) as swarm:
        *honest, liar = await swarm.staffed(0, 1, 1, 1)
        first = honest[0]
        await swarm.until(lambda: first.step(0) >= 3)
        liar.distort(turned_around(liar, signs=False))
        await swarm.until(lambda: all(voted_out(one) == {liar.peer} for one in honest))
        assert not any(map(out, honest))
        step = first.step(0)
        await swarm.until(lambda: first.step(0) >= step + 5)
