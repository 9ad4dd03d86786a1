"""Signatures hold for exactly one signer, kind, body and swarm."""

import msgspec
import pytest
from base58 import b58encode
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.wire.envelope import Signer, transcript, verify
from protocol.wire.fields import Envelope
from tests.support.protocol_examples import OTHER_SWARM, SWARM, peer, signer


def refuse(envelope: Envelope, context: str = SWARM, reason: str = "bad-signature") -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        verify(envelope, context)
    assert caught.value.reason == reason
    assert caught.value.penalty == 50


@settings(max_examples=30)
@given(st.binary(max_size=200), st.text(min_size=1, max_size=32))
def test_round_trip(body: bytes, kind: str) -> None:
    envelope = signer(1).sign(kind, body, SWARM)
    verify(envelope, SWARM)
    assert envelope.signer == peer(1)
    assert Signer((1).to_bytes(32, "big")).sign(kind, body, SWARM) == envelope  # deterministic


def test_another_context_kind_body_or_signer_is_refused() -> None:
    good = signer(1).sign("advert", b"body", SWARM)
    replace = msgspec.structs.replace
    refuse(good, OTHER_SWARM)
    refuse(replace(good, kind="posting"))
    refuse(replace(good, body=b"bodY"))
    refuse(replace(good, signer=peer(2)))


@pytest.mark.parametrize(
    "name", ["", "x", "12D3KooW", peer(1) + "1", "1" + peer(1), b58encode(b"\0" * 38).decode()]
)
def test_a_signer_that_is_no_peer_id_is_refused(name: str) -> None:
    good = signer(1).sign("advert", b"body", SWARM)
    refuse(msgspec.structs.replace(good, signer=name), reason="bad-signer")


def test_the_zero_key_signs_nothing() -> None:
    from protocol.ids import peer_id_from_key

    for point in (b"\0" * 32, b"\1" + b"\0" * 31):  # points of small order
        name = peer_id_from_key(point)
        refuse(Envelope(signer=name, kind="advert", body=b"", signature=b"\0" * 64))
        refuse(Envelope(signer=name, kind="advert", body=b"", signature=point + b"\0" * 32))


def test_parts_of_the_transcript_cannot_shift() -> None:
    assert transcript("ab", b"c", "d") != transcript("a", b"bc", "d")
    assert transcript("a", b"", "bc") != transcript("c", b"", "ab")


def test_a_seed_of_another_length_is_refused() -> None:
    with pytest.raises(LocalProtocolError):
        Signer(b"s" * 31)
