"""Proofs that an author contradicts itself, and records that prove nothing."""

from __future__ import annotations

import msgspec
import pytest

from protocol.errors import RemoteProtocolError
from protocol.evidence.proof import check, contradiction, words_of
from protocol.ids import SwarmId
from protocol.membership.advert import ADVERT, encode_advert
from protocol.membership.losses import PROGRESS
from protocol.membership.record import Record, seal
from protocol.recovery.stored import STORED
from protocol.wire.fields import Envelope
from protocol.wire.parts import Proof
from tests.support.protocol_examples import SWARM, WALL, advert, peer, signer


def signed(
    number: int, seq: int, body: bytes, kind: str = ADVERT, swarm: SwarmId = SWARM
) -> Envelope:
    return seal(signer(number), kind, Record(peer(number), seq, int(WALL), 600, body), swarm)


def proof_of(number: int = 1) -> Proof:
    found = contradiction(signed(number, 7, b"one"), signed(number, 7, b"two"))
    assert found is not None
    return found


def refused(proof: Proof) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        check(proof, SWARM)
    assert caught.value.penalty >= 20
    return caught.value.reason


@pytest.mark.parametrize("kind", [ADVERT, STORED])
def test_two_bodies_with_one_number_convict_their_author(kind: str) -> None:
    one, two = signed(1, 7, b"one", kind), signed(1, 7, b"two", kind)
    proof = contradiction(two, one)
    assert proof == contradiction(one, two)  # one proof, whoever saw which first
    assert check(proof, SWARM) == peer(1)
    assert kind in words_of(proof)


@pytest.mark.parametrize(
    "other",
    [
        signed(1, 7, b"one"),
        signed(1, 8, b"two"),
        signed(2, 7, b"two"),
        signed(1, 7, b"two", STORED),
    ],
    ids=["the same", "a later number", "another author", "another kind"],
)
def test_what_may_both_be_true_is_no_contradiction(other: Envelope) -> None:
    assert contradiction(signed(1, 7, b"one"), other) is None


def test_a_kind_whose_numbers_may_be_used_twice_convicts_nobody() -> None:
    one, two = signed(1, 7, b"one", PROGRESS), signed(1, 7, b"two", PROGRESS)
    assert contradiction(one, two) is None
    assert refused(Proof(one, two)) == "proof-of-nothing"


def test_a_proof_in_anothers_name_proves_nothing() -> None:
    """The attacker's two signatures under an honest peer's id."""
    first, second = (
        msgspec.structs.replace(part, signer=peer(1))
        for part in (proof_of(2).first, proof_of(2).second)
    )
    assert refused(Proof(first, second)) == "bad-signature"


def test_one_statement_twice_or_in_the_wrong_order_is_refused() -> None:
    """Replayed: one body with itself. Reordered: else one conflict would make two proofs."""
    proof = proof_of()
    assert refused(Proof(proof.first, proof.first)) == "proof-of-nothing"
    assert refused(Proof(proof.second, proof.first)) == "proof-of-nothing"


def test_one_statement_encoded_twice_is_no_contradiction() -> None:
    """The same record with a longer integer: an encoding that no honest peer writes."""
    honest = signed(1, 7, encode_advert(advert()))
    longer = honest.body.replace(b"\x07", b"\xcc\x07", 1)
    other = signer(1).sign(ADVERT, longer, SWARM)
    with pytest.raises(RemoteProtocolError, match="not canonical"):
        contradiction(honest, other)
