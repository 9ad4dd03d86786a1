"""A signer of two adverts with one number is expelled everywhere, for good, and on disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio

from client.net.errors import DialError
from client.node.status import take_snapshot
from client.store.persisted import Persisted
from client.store.records import KeptEvidence
from protocol.effects import Publish
from protocol.evidence.proof import contradiction
from protocol.membership.advert import ADVERT as KIND
from protocol.membership.advert import encode_advert
from protocol.membership.record import Record, seal
from protocol.wire.messages import Evidence, Records
from protocol.wire.parts import Proof
from tests.support.protocol_examples import OTHER_SWARM
from tests.support.train_swarm import ADVERT, TestSwarm, Volunteer, open_swarm


def two_faced(swarm: TestSwarm, liar: Volunteer, where: str | None = None) -> Proof:
    """Two adverts of a volunteer with one number."""
    signer = liar.engine.signer
    number = liar.engine.membership.records.seq((KIND, signer.peer)) + 1
    wall = int(liar.engine.wall())
    one, two = (
        seal(
            signer,
            KIND,
            Record(signer.peer, number, wall, 600, encode_advert(body)),
            where or swarm.file.swarm,  # type: ignore[arg-type]
        )
        for body in (ADVERT, msgspec.structs.replace(ADVERT, memory_bytes=1))
    )
    found = contradiction(one, two)
    assert found is not None
    return found


async def test_the_author_of_two_adverts_is_out_everywhere(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_swarm(tmp_path) as swarm:
        honest = [await swarm.add() for _ in range(3)]
        liar = await swarm.add()
        me, file = liar.engine.signer.peer, tmp_path / "proofs"
        honest[0].engine.keep_evidence(file, tmp_path / "numbers", tmp_path / "marks")
        await swarm.until(
            lambda: all(h.engine.membership.roster.member(me) is not None for h in honest)
        )
        proof = two_faced(swarm, liar)
        liar.engine.send(honest[0].engine.signer.peer, Records([proof.first]))
        liar.engine.send(honest[1].engine.signer.peer, Records([proof.second]))
        await swarm.until(lambda: all(me in h.engine.membership.verdicts for h in honest))
        await swarm.until(lambda: not swarm.hub.linked(me))
        assert all(h.engine.membership.roster.member(me) is None for h in honest)
        with pytest.raises(DialError):
            await liar.engine.network.connect(honest[2].engine.network.addresses[0])

        late = await swarm.add()  # links with everybody, the liar included
        await swarm.until(lambda: me in late.engine.expulsions.expelled)
        assert Persisted(file, KeptEvidence).read() == KeptEvidence((proof,))
        now = take_snapshot(late.engine, late.held_stages, 0.0, stopping=False)
        assert [out.peer for out in now.expelled] == [me]
        assert "two different adverts" in now.expelled[0].reason
        assert late.engine.error_boundary.internal_errors == 0


async def test_the_proofs_of_the_disk_expel_at_once(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_swarm(tmp_path) as swarm:
        one, liar = await swarm.add(), await swarm.add()
        proof, file = two_faced(swarm, liar), tmp_path / "proofs"
        one.engine.keep_evidence(file, tmp_path / "numbers", tmp_path / "marks")
        one.engine._members(one.engine.expulsions.contradicted(proof.first, proof.second))
        swarm.vanish(one)
        again = await swarm.add()  # only the liar is there
        assert liar.engine.signer.peer not in again.engine.membership.verdicts
        again.engine.keep_evidence(file, tmp_path / "numbers", tmp_path / "marks")
        assert liar.engine.signer.peer in again.engine.membership.verdicts
        await swarm.until(lambda: not swarm.hub.linked(again.engine.signer.peer))


async def test_who_relays_evidence_of_another_run_is_banned(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_swarm(tmp_path) as swarm:
        one, framed, framer = [await swarm.add() for _ in range(3)]
        await swarm.until(lambda: len(swarm.hub.linked(one.engine.signer.peer)) == 2)
        await swarm.until(lambda: len(one.engine.handshake.admitted) == 2)
        proof = two_faced(swarm, framed, OTHER_SWARM)
        for _ in range(2):
            framer.engine.send(one.engine.signer.peer, Evidence(proof))
        await swarm.until(lambda: len(swarm.hub.linked(one.engine.signer.peer)) == 1)
        assert swarm.hub.linked(one.engine.signer.peer) == (framed.engine.signer.peer,)
        assert len(one.engine.membership.verdicts) == 0


async def test_our_own_adverts_rise_although_the_clock_is_set_back(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The home is the same, the process another one."""
    numbers = []
    async with open_swarm(tmp_path) as swarm:
        for ahead_ms in (3_600_000, 0):
            one = await swarm.add()
            one.engine.keep_evidence(tmp_path / "proofs", tmp_path / "numbers", tmp_path / "marks")
            before = int(1000 * one.engine.wall()) + ahead_ms
            me = one.engine.signer.peer
            one.engine.perform(Publish(KIND, me, before, encode_advert(ADVERT)))
            numbers.append(one.engine.membership.records.seq((KIND, me)))
    assert numbers == sorted(set(numbers))


async def test_a_stage_goes_on_without_its_last_replica_once_somebody_takes_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_swarm(tmp_path, steps=12) as swarm:
        first, liar = await swarm.add(0), await swarm.add(1)
        await swarm.until(lambda: first.serves(0) and liar.serves(1))
        swarm.start()
        await swarm.until(lambda: first.step(0) >= 3)
        me, proof = liar.engine.signer.peer, two_faced(swarm, liar)
        first.engine._members(first.engine.expulsions.contradicted(proof.first, proof.second))
        await swarm.until(lambda: not swarm.hub.linked(me))
        later = await swarm.add(1)
        await swarm.until(lambda: later.serves(1))
        await swarm.until(lambda: first.step(0) >= 12)
        assert me in later.engine.membership.verdicts
