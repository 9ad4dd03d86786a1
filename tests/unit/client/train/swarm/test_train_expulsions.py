"""Who signs two plans of one attempt is expelled everywhere, for good, and on disk."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from client.net.errors import DialError
from client.store.paths import Kept, home_folders
from client.store.persisted import Persisted
from client.store.records import KeptEvidence
from client.train.swarm.expulsions import Expulsions
from protocol.audit.charges import CHARGE, Charge, verdict_of
from protocol.audit.charges import KIND as CHARGED
from protocol.effects import Explain
from protocol.errors import RemoteProtocolError
from protocol.evidence.proof import contradiction
from protocol.evidence.statement import envelope_of
from protocol.ids import PASS_FANOUT, PASS_TO_ALL_UP_TO, PeerId, SwarmId
from protocol.verdicts import Verdicts
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Plan, Statements
from protocol.wire.parts import PlanMember, Proof, VotedOut
from tests.support.protocol_examples import (
    OTHER_SWARM,
    SWARM,
    peer,
    proof_of,
    signer,
    stated_by,
    statement_by,
)
from tests.support.recording_ports import RecordingPorts
from tests.support.train_swarm import TestSwarm, Volunteer


def two_faced(swarm: TestSwarm, liar: Volunteer, where: SwarmId | None = None) -> Proof:
    """Two plans of a volunteer for one attempt."""
    author, of = liar.engine.signer, where or swarm.file.swarm
    return contradiction(*(statement_by(author, of, sort) for sort in (b"a", b"b")))  # type: ignore[return-value]


async def test_the_author_of_two_plans_is_out_everywhere(swarm: TestSwarm) -> None:
    honest = [await swarm.add() for _ in range(3)]
    liar = await swarm.add()
    me, home = liar.peer, home_folders(honest[0].disk.parent)
    file = home.of(swarm.file.swarm, Kept.PROOFS)
    await swarm.until(
        lambda: all(h.engine.membership.roster.member(me) is not None for h in honest)
    )
    proof = two_faced(swarm, liar)
    honest[0].engine.expulsions.receive(honest[1].peer, proof)
    await swarm.until(lambda: all(me in h.engine.membership.verdicts for h in honest))
    await swarm.until(lambda: not swarm.hub.linked(me))
    assert all(h.engine.membership.roster.member(me) is None for h in honest)
    with pytest.raises(DialError):
        await liar.engine.network.connect(honest[2].engine.network.addresses[0])

    late = await swarm.add()  # links with everybody, the liar included
    await swarm.until(lambda: me in late.engine.membership.verdicts)
    assert Persisted(file, KeptEvidence).read() == KeptEvidence((proof,))
    now = late.shown()
    assert [out.peer for out in now.expelled] == [me]
    assert "two different plans" in now.expelled[0].reason
    assert late.engine.internal_errors == 0


async def test_who_relays_evidence_of_another_run_is_banned(swarm: TestSwarm) -> None:
    one, framed, framer = [await swarm.add() for _ in range(3)]
    await swarm.until(lambda: len(swarm.hub.linked(one.peer)) == 2)
    await swarm.until(lambda: len(one.engine.handshake.admitted) == 2)
    proof = two_faced(swarm, framed, OTHER_SWARM)
    for _ in range(2):
        framer.engine.send(one.peer, Statements("proof", proof.envelopes))
    await swarm.until(lambda: len(swarm.hub.linked(one.peer)) == 1)
    assert swarm.hub.linked(one.peer) == (framed.peer,)
    assert len(one.engine.membership.verdicts) == 0


ME, LEADER, LIAR = peer(0), peer(1), peer(9)
STAGE = 1


class Expelling(RecordingPorts):
    """A volunteer's expulsions; what they do to its network and its membership is written down."""

    def __init__(self, siblings: int = 0, file: Path | None = None) -> None:
        super().__init__(ME)
        stage = [Replica(peer(n), 7, True) for n in range(1, siblings + 1)]
        self.held_stages.view = SwarmView.of([[], stage])
        self.cut_off, self.members = list[tuple[PeerId, str]](), {LIAR: True}
        self.verdicts = Verdicts()
        self.membership, network = Mock(verdicts=self.verdicts), Mock()
        self.membership.roster.member = self._member
        self.membership.is_new = lambda _: False
        self.membership.expel = lambda of: [("forgotten", of)]
        network.expel = lambda culprit, words: self.cut_off.append((culprit, words))
        self.links = [LEADER]
        self.of = Expulsions(self, network, self.membership, file)

    def find(self, proof: Proof) -> None:
        """It sees a contradiction itself."""
        self.of._proven(proof)

    def _member(self, of: PeerId) -> Any:
        return Mock(linked=self.members[of]) if of in self.members else None


def saved(file: Path) -> KeptEvidence | None:
    return Persisted(file, KeptEvidence).read()


def voted_out(member: PeerId = LIAR, swarm: str = SWARM) -> VotedOut:
    body = CHARGE.encode(Charge(STAGE, member, 7, 1, "lies"))
    return VotedOut(STAGE, member, tuple(signer(n).sign(CHARGED, body, swarm) for n in (1, 2)))  # type: ignore[arg-type]


def plan(attempt: int = 1, by: int = 1, members: int = 2) -> Plan:
    """A plan of a leader, with its signature."""
    parts = [PlanMember(peer(n), b"") for n in range(members)]
    return stated_by(by, Plan(STAGE, 3, attempt, parts, list(range(members + 1)), []))


def test_two_bodies_of_one_author_cut_it_off_and_are_told_to_all() -> None:
    volunteer, proof = Expelling(), proof_of(9)
    volunteer.find(proof)
    [(culprit, words)] = volunteer.cut_off
    assert culprit == LIAR
    assert words.endswith(": it is expelled for the rest of the run")
    told = Explain("membership", words, "warning", (LIAR,))
    assert volunteer.done == [told, ("forgotten", LIAR)]
    assert volunteer.sent == [(LEADER, Statements("proof", proof.envelopes))]
    assert LIAR in volunteer.of.verdicts
    volunteer.forget()
    volunteer.find(proof)  # that is known
    assert volunteer.sent == volunteer.done == []
    volunteer.of.link_up(peer(2))
    assert volunteer.sent == [(peer(2), Statements("proof", proof.envelopes))]
    volunteer.links = [LEADER, peer(2)]
    volunteer.of.receive(peer(2), proof_of(8))
    assert [who for who, _ in volunteer.cut_off] == [LIAR, peer(8)]
    assert volunteer.sent[1:] == [(LEADER, Statements("proof", proof_of(8).envelopes))]


def test_who_has_not_worked_makes_room_for_the_proofs_against_members() -> None:
    volunteer = Expelling()
    volunteer.members = {peer(7): False, peer(6): True, LIAR: True}
    volunteer.membership.is_new = lambda of: of != LIAR
    for number in (9, 8, 7, 6):
        proof = proof_of(number)
        volunteer.find(proof)
    strangers = {one.culprit for one in volunteer.verdicts if not one.member}
    assert strangers == {peer(8), peer(7), peer(6)}


def test_a_majority_of_a_stage_expels_others_and_never_ourselves(tmp_path: Path) -> None:
    volunteer = Expelling(file=(file := tmp_path / "evidence"))
    volunteer.of.voted_out(verdict_of(voted_out(ME)))
    assert volunteer.cut_off == []
    volunteer.of.voted_out(verdict_of(voted_out()))
    assert [who for who, _ in volunteer.cut_off] == [LIAR]
    assert saved(file) == KeptEvidence((), (voted_out(),))


def test_what_the_disk_proves_is_expelled_and_the_rest_is_dropped_with_a_word(
    tmp_path: Path,
) -> None:
    file = tmp_path / "evidence"
    false = voted_out(peer(8), OTHER_SWARM)
    kept = KeptEvidence(
        (proof_of(6), proof_of(5, OTHER_SWARM)), (voted_out(), false, voted_out(), voted_out(ME))
    )
    Persisted(file, KeptEvidence).save(kept)
    volunteer = Expelling(file=file)
    volunteer.of.restore()
    assert [who for who, _ in volunteer.cut_off] == [peer(6), LIAR]
    warned = volunteer.done[0]
    assert warned.words == f"2 proofs of {file} prove nothing and are dropped"
    assert warned.level == "warning"
    sound = Expelling(file=tmp_path / "another")
    sound.of.restore()
    assert (sound.done, sound.cut_off) == ([], [])


def test_a_member_is_written_down_at_once_and_strangers_with_the_next_save(tmp_path: Path) -> None:
    volunteer = Expelling(file=(file := tmp_path / "evidence"))
    proofs = [proof_of(number) for number in (8, 9, 7)]
    volunteer.members = {peer(8): False, peer(9): False, peer(7): True}
    for proof in proofs[:2]:
        volunteer.find(proof)
    assert not file.exists()
    volunteer.of.save()
    assert saved(file) == KeptEvidence(tuple(proofs[:2]))
    volunteer.find(proofs[2])
    assert saved(file) == KeptEvidence(tuple(proofs))
    file.unlink()
    volunteer.of.save()
    assert not file.exists(), "nothing is new"


@pytest.mark.parametrize(
    ("count", "told"), [(1, 0), (PASS_TO_ALL_UP_TO + 1, PASS_TO_ALL_UP_TO), (20, PASS_FANOUT)]
)
def test_what_a_leader_states_is_passed_on_to_siblings(count: int, told: int) -> None:
    volunteer = Expelling(siblings=count)
    volunteer.of.stated(LEADER, plan())
    to = [who for who, message in volunteer.sent if isinstance(message, Statements)]
    assert len(set(to)) == len(volunteer.sent) == told
    assert set(to) <= {peer(n) for n in range(2, count + 1)}
    volunteer.of.stated(LEADER, plan())
    assert len(volunteer.sent) == told, "once"
    if told == PASS_FANOUT:
        volunteer.of.stated(LEADER, plan(attempt=2))
        assert {who for who, _ in volunteer.sent[told:]} != set(to), "of each statement others"


def test_a_leader_that_tells_two_plans_is_found_out_by_a_sibling_that_passes_one_on() -> None:
    volunteer = Expelling(siblings=3)
    other = plan(members=3)
    passed = envelope_of(LEADER, other)
    volunteer.of.stated(peer(5), plan(by=5))  # it does not lead
    assert volunteer.sent == []
    volunteer.of.stated(LEADER, plan())
    volunteer.of.passed_on(peer(7), passed)  # it is no sibling
    assert volunteer.cut_off == []
    volunteer.of.passed_on(peer(2), passed)
    assert [who for who, _ in volunteer.cut_off] == [LEADER]
    volunteer.of.passed_on(peer(3), passed)
    assert len(volunteer.cut_off) == 1


def test_who_passes_on_what_nobody_signed_is_penalised() -> None:
    volunteer = Expelling(siblings=3)
    forged = envelope_of(LEADER, plan(by=2, members=3))
    volunteer.of.stated(LEADER, plan())
    with pytest.raises(RemoteProtocolError):
        volunteer.of.passed_on(peer(2), forged)
    assert volunteer.cut_off == []
