"""Proofs that an author contradicts itself, and records that prove nothing."""

import msgspec
import pytest
from msgspec.structs import replace

from protocol import limits
from protocol.audit.commitment import (
    KIND,
    PIECE,
    SEGMENT,
    SIGNED,
    Piece,
    envelope_of,
    envelope_of_piece,
)
from protocol.decree.decree import READY
from protocol.errors import RemoteProtocolError
from protocol.evidence.heard import MAX_COMMITMENTS, Heard, stage_of
from protocol.evidence.proof import check, contradiction
from protocol.evidence.statement import PLAN, STATEMENTS, body_of
from protocol.ids import SwarmId
from protocol.membership.losses import PROGRESS
from protocol.wire.fields import Envelope
from protocol.wire.messages import Commitment, Segment, Statements, encode_message
from protocol.wire.parts import Proof
from tests.support.protocol_examples import (
    OTHER_SWARM,
    SWARM,
    peer,
    record,
    signer,
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


# --- contributions: a segment that is no part of its commitment, or two ------------------------


DIGESTS = (b"a" * 32, b"", b"c" * 32)
SAID = Commitment(1, 7, 2, b"r" * 32, DIGESTS, era=5)
SENT = Segment(1, 7, 2, 0, era=5)


def commitment(number: int = 1, swarm: SwarmId = SWARM, **changes: object) -> Envelope:
    message = replace(SAID, **changes)
    signature = signer(number).sign(KIND, body_of(message), swarm).signature
    envelope = envelope_of(peer(number), replace(message, signature=signature))
    assert envelope is not None
    return envelope


def segment(
    digest: bytes = b"x" * 32, number: int = 1, swarm: SwarmId = SWARM, **changes: object
) -> Envelope:
    of = replace(SENT, **changes)
    body = PIECE.encode(Piece(of.stage, of.step, of.attempt, of.era, of.segment, digest))
    signed = replace(of, signature=signer(number).sign(SEGMENT, body, swarm).signature)
    envelope = envelope_of_piece(peer(number), signed, digest)
    assert envelope is not None
    return envelope


@pytest.mark.parametrize("place", [0, 1, 3])
def test_who_sends_something_else_than_it_has_committed_to_is_convicted(place: int) -> None:
    """Also a segment without elements, and one beyond the last."""
    proof = contradiction(commitment(), segment(segment=place))
    assert proof == contradiction(segment(segment=place), commitment())  # whoever saw which first
    assert check(proof, SWARM).culprit == peer(1)
    assert "contributed something else" in check(proof, SWARM).words


@pytest.mark.parametrize(
    "other",
    [
        segment(DIGESTS[0]),
        segment(DIGESTS[2], segment=2),
        segment(attempt=3),
        segment(step=8),
        segment(stage=0),
        segment(era=6),
        segment(number=2),
    ],
    ids=["as said", "the last", "attempt", "step", "stage", "lineage", "author"],
)
def test_what_agrees_or_is_about_something_else_is_no_contradiction(other: Envelope) -> None:
    assert contradiction(commitment(), other) is None
    assert contradiction(other, commitment()) is None


def test_two_commitments_of_an_attempt_convict_and_so_do_two_segments() -> None:
    pairs = [
        (commitment(), commitment(root=b"q" * 32)),
        (commitment(), commitment(segments=(b"a" * 32, b"", b"d" * 32))),
        (segment(), segment(b"y" * 32)),
    ]
    for one, other in pairs:
        proof = contradiction(one, other)
        assert check(proof, SWARM).culprit == peer(1)
        assert "two different" in check(proof, SWARM).words
    assert contradiction(commitment(), commitment()) is None
    assert contradiction(segment(), segment(b"y" * 32, segment=2)) is None


def ordered(one: Envelope, other: Envelope) -> Proof:
    return Proof(*sorted((one, other), key=lambda envelope: envelope.body))


def test_forged_foreign_and_reordered_proofs_convict_nobody() -> None:
    good = ordered(commitment(), segment())
    assert check(good, SWARM).culprit == peer(1)
    assert refused(Proof(good.second, good.first)) == "proof-of-nothing"
    assert refused(Proof(good.first, good.first)) == "proof-of-nothing"
    unsigned = replace(segment(), signature=bytes(64))
    assert refused(ordered(commitment(), unsigned)) == "bad-signature"
    anothers = replace(segment(number=2), signer=peer(1))
    assert refused(ordered(commitment(), anothers)) == "bad-signature"
    assert refused(ordered(commitment(), segment(swarm=OTHER_SWARM))) == "bad-signature"
    assert refused(ordered(commitment(swarm=OTHER_SWARM), segment())) == "bad-signature"
    replayed = replace(segment(attempt=3), body=segment().body)  # signed for another attempt
    assert refused(ordered(commitment(), replayed)) == "bad-signature"
    assert refused(ordered(commitment(), segment(number=2))) == "proof-of-nothing"
    assert refused(ordered(commitment(), replace(segment(), kind=KIND))).endswith("malformed")


def test_a_proof_of_the_largest_stage_fits_a_message() -> None:
    many = tuple(bytes([n // 256, n % 256]) * 16 for n in range(limits.MAX_SEGMENTS))
    shown = commitment(segments=many, step=limits.MAX_STEP, attempt=limits.MAX_ATTEMPT)
    assert len(shown.body) <= limits.MAX_ENVELOPE_BODY_BYTES
    proof = ordered(shown, commitment(step=limits.MAX_STEP, attempt=limits.MAX_ATTEMPT))
    encoded = encode_message(Statements("proof", proof.envelopes))
    assert len(encoded) <= limits.MAX_HEADER_BYTES
    assert msgspec.msgpack.decode(encoded)  # and it is within the bounds of its fields
    said = Commitment(1, limits.MAX_STEP, limits.MAX_ATTEMPT, b"r" * 32, many, era=5)
    assert SIGNED.parse(shown.body) == said


# --- as they come ---------------------------------------------------------------------------


def told(number: int = 1, **changes: object) -> Commitment:
    message = replace(SAID, **changes)
    return replace(message, signature=signer(number).sign(KIND, body_of(message), SWARM).signature)


@pytest.mark.parametrize(
    "message",
    [
        SAID,
        told(2),
        replace(told(), segments=DIGESTS[:2]),
        replace(told(), root=b""),
    ],
    ids=["unsigned", "another's", "changed", "empty"],
)
def test_a_commitment_that_its_sender_has_not_signed_is_refused(message: Commitment) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        Heard(SWARM).take(peer(1), message)
    assert caught.value.reason in ("bad-signature", "not-signed")


def test_two_commitments_to_two_members_meet_when_one_passes_its_own_on() -> None:
    heard = Heard(SWARM)
    assert heard.take(peer(1), told()) == (None, None), "it is not passed on when it comes"
    shown = commitment(root=b"q" * 32)
    assert stage_of(shown) == 1
    proof = heard.passed_on(peer(2), shown)
    assert check(proof, SWARM).culprit == peer(1)
    assert heard.passed_on(peer(2), commitment()) is None


def test_few_commitments_are_kept_of_each_author() -> None:
    heard = Heard(SWARM)
    for attempt in range(20):
        heard.take(peer(1), told(attempt=attempt))
        heard.passed_on(peer(2), commitment(3, attempt=attempt))
    assert len(heard._said[peer(1)]) == len(heard._said[peer(3)]) == MAX_COMMITMENTS
