"""Signed bodies: one encoding per meaning, and nothing absurd can be said."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import RemoteProtocolError
from protocol.matching import bodies
from protocol.matching.bodies import Mandate
from tests.support.matching_examples import WALL_S, propose

MANDATE = Mandate(2_833_333, 1)
ISSUED = int(WALL_S * 1000)
EXAMPLES: list[bodies.Body] = [
    propose(MANDATE),
    bodies.Propose(0, MANDATE, ISSUED, 1, True),
    bodies.Withdraw(0, MANDATE, ISSUED, "leaving"),
    bodies.Hold(0, MANDATE, ISSUED, ISSUED, True),
    bodies.Reject(0, MANDATE, ISSUED, 1, ISSUED, "full"),
    bodies.Posting(0, MANDATE, ISSUED, 1, 2, 5, 1, 5, 1, 6, 6, 2, 0),
]
ids = [type(body).__name__ for body in EXAMPLES]


def refused(kind: str, encoded: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        bodies.decode_body(kind, encoded)
    return caught.value.reason


@pytest.mark.parametrize("body", EXAMPLES, ids=ids)
def test_round_trip(body: bodies.Body) -> None:
    kind = bodies.KINDS[type(body)]
    assert bodies.decode_body(kind, bodies.encode_body(body)) == body


@pytest.mark.parametrize("body", EXAMPLES, ids=ids)
def test_a_body_is_only_valid_under_its_own_kind(body: bodies.Body) -> None:
    for other, kind in bodies.KINDS.items():
        if other is not type(body):
            assert refused(kind, bodies.encode_body(body)) == "matching-body-malformed"
    assert refused("gossip", b"") == "matching-kind-unknown"


@pytest.mark.parametrize("body", EXAMPLES, ids=ids)
def test_every_field_refuses_absurd_values(body: bodies.Body) -> None:
    plain = msgspec.msgpack.decode(bodies.encode_body(body))
    for position in range(len(plain)):
        for absurd in (math.nan, math.inf, -1, 1e30, 2**63, None, [], "x" * 300, b"x"):
            if plain[position] == absurd or (position and isinstance(plain[position], str)):
                continue
            spoiled = msgspec.msgpack.encode([*plain[:position], absurd, *plain[position + 1 :]])
            assert refused(bodies.KINDS[type(body)], spoiled) == "matching-body-malformed"


@pytest.mark.parametrize("body", EXAMPLES, ids=ids)
def test_truncated_extended_and_padded_bodies_are_refused(body: bodies.Body) -> None:
    kind, encoded = bodies.KINDS[type(body)], bodies.encode_body(body)
    for length in range(len(encoded)):
        refused(kind, encoded[:length])
    refused(kind, encoded + b"\0")
    assert refused(kind, encoded + b"\0" * 1024) == "matching-body-too-long"


def test_a_wider_integer_of_the_same_value_is_not_canonical() -> None:
    encoded = bodies.encode_body(EXAMPLES[1])
    assert encoded.endswith(b"\x01\xc3"), "the seat, and that it is bound"
    wide = encoded[:-2] + b"\xcd\x00\x01" + encoded[-1:]
    assert refused("propose", wide) == "matching-body-malformed"


@given(st.sampled_from(sorted(bodies.KINDS.values())), st.binary(max_size=200))
def test_noise_is_refused(kind: str, noise: bytes) -> None:
    refused(kind, noise)


@pytest.mark.parametrize(("age_s", "fresh"), [(0, True), (179, True), (181, False), (-121, False)])
def test_freshness_tolerates_the_swarms_skew(age_s: float, fresh: bool) -> None:
    assert bodies.is_fresh(EXAMPLES[0], WALL_S + age_s) is fresh
