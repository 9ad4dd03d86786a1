"""Proofs that an author contradicts itself, and records that prove nothing."""

import pytest
from msgspec.structs import replace

from protocol.decree.decree import READY
from protocol.errors import RemoteProtocolError
from protocol.evidence.heard import Heard
from protocol.evidence.proof import check, contradiction
from protocol.evidence.statement import PLAN, STATEMENTS, envelope_of
from protocol.ids import SwarmId
from protocol.membership.losses import PROGRESS
from protocol.wire.fields import Envelope
from protocol.wire.messages import Commitment
from protocol.wire.parts import Proof
from tests.support.protocol_examples import (
    OTHER_SWARM,
    SWARM,
    peer,
    record,
    signer,
    stated_by,
    statement_by,
)


def refused(proof: Proof) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        check(proof, SWARM)
    assert caught.value.penalty >= 20
    return caught.value.reason


def stated(sort: bytes, number: int = 1, kind: str = PLAN) -> Envelope:
    return statement_by(signer(number), SWARM, sort, kind)


@pytest.mark.parametrize("kind", sorted(STATEMENTS))
def test_two_bodies_with_one_number_convict_their_author(kind: str) -> None:
    one, two = stated(b"a", kind=kind), stated(b"b", kind=kind)
    proof = contradiction(two, one)
    assert proof == contradiction(one, two)  # one proof, whoever saw which first
    assert check(proof, SWARM).culprit == peer(1)
    assert kind in check(proof, SWARM).words


@pytest.mark.parametrize(
    "other",
    [stated(b"a"), stated(b"b", number=2), stated(b"b", kind=READY)],
    ids=["the same", "another author", "another kind"],
)
def test_what_may_both_be_true_is_no_contradiction(other: Envelope) -> None:
    assert contradiction(stated(b"a"), other) is None


def test_a_kind_whose_numbers_may_be_used_twice_convicts_nobody() -> None:
    one, two = record(1, PROGRESS, b"one", seq=7), record(1, PROGRESS, b"two", seq=7)
    assert contradiction(one, two) is None
    assert refused(Proof(one, two)) == "proof-of-nothing"


def test_one_statement_encoded_twice_is_no_contradiction() -> None:
    """The same with a longer integer: an encoding that no honest peer writes."""
    honest = stated(b"a")
    longer = honest.body.replace(b"\x07", b"\xcc\x07", 1)
    other = signer(1).sign(PLAN, longer, SWARM)
    with pytest.raises(RemoteProtocolError, match="not canonical"):
        contradiction(honest, other)


# --- commitments --------------------------------------------------------------------------------


SAID = Commitment(1, 7, 2, b"r" * 32, (b"a" * 32, b"", b"c" * 32), era=5)


def told(number: int = 1, swarm: SwarmId = SWARM, **changes: object) -> Commitment:
    return stated_by(number, replace(SAID, **changes), swarm)


def commitment(number: int = 1, swarm: SwarmId = SWARM, **changes: object) -> Envelope:
    envelope = envelope_of(peer(number), told(number, swarm, **changes))
    assert envelope is not None
    return envelope


OTHER = {"root": b"q" * 32}


@pytest.mark.parametrize("changes", [OTHER, {"segments": (b"a" * 32, b"", b"d" * 32)}], ids=str)
def test_two_commitments_of_an_attempt_convict_their_author(changes: dict[str, object]) -> None:
    proof = contradiction(commitment(), commitment(**changes))
    assert check(proof, SWARM).culprit == peer(1)
    assert "two different commitments" in check(proof, SWARM).words
    assert contradiction(commitment(), commitment()) is None
    for apart in ({"attempt": 3}, {"step": 8}, {"stage": 0}, {"era": 6}):
        assert contradiction(commitment(), commitment(**changes, **apart)) is None


def ordered(one: Envelope, other: Envelope) -> Proof:
    return Proof(*sorted((one, other), key=lambda envelope: envelope.body))


def test_forged_foreign_and_reordered_proofs_convict_nobody() -> None:
    good = ordered(commitment(), commitment(**OTHER))
    assert check(good, SWARM).culprit == peer(1)
    assert refused(Proof(good.second, good.first)) == "proof-of-nothing"
    assert refused(Proof(good.first, good.first)) == "proof-of-nothing"
    for one, other in ((good.first, good.second), (good.second, good.first)):
        assert refused(ordered(one, replace(other, signature=bytes(64)))) == "bad-signature"
    anothers = replace(commitment(2, **OTHER), signer=peer(1))
    assert refused(ordered(commitment(), anothers)) == "bad-signature"
    foreign = commitment(swarm=OTHER_SWARM, **OTHER)
    assert refused(ordered(commitment(), foreign)) == "bad-signature"
    replayed = replace(commitment(attempt=3), body=commitment(**OTHER).body)
    assert refused(ordered(commitment(), replayed)) == "bad-signature"
    assert refused(ordered(commitment(), commitment(2, **OTHER))) == "proof-of-nothing"


# --- as they come ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        SAID,
        told(2),
        replace(told(), segments=SAID.segments[:2]),
    ],
    ids=["unsigned", "another's", "changed"],
)
def test_a_commitment_that_its_sender_has_not_signed_is_refused(message: Commitment) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        Heard(SWARM).take(peer(1), message)
    assert caught.value.reason in ("bad-signature", "not-signed")


def test_two_commitments_to_two_members_meet_when_one_passes_its_own_on() -> None:
    heard = Heard(SWARM)
    assert heard.take(peer(1), told()) == (None, None), "it is not passed on when it comes"
    shown = commitment(**OTHER)
    proof = heard.passed_on(peer(2), shown)
    assert check(proof, SWARM).culprit == peer(1)
    assert heard.passed_on(peer(2), commitment()) is None
