"""Bodies of full epochs: one encoding per meaning, nothing absurd can be said, small."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import RemoteProtocolError
from protocol.matching import preferences
from protocol.matching.bodies import Body, Mandate, encode_body
from protocol.matching.exchange import bodies
from protocol.matching.exchange.bodies import EpochId, Round
from protocol.matching.exchange.load import Basis, Load
from protocol.matching.exchange.projection import SAMPLES, Projection
from tests.support.matching_examples import WALL_S, peer

MANDATE = Mandate(2_833_333, 1)
ISSUED = int(WALL_S * 1000)
ROUND = Round(EpochId(2_833_333, 1, 3), 2)
HEAD = (0, MANDATE, ISSUED)
BIG = preferences.MAX_RATE * 100_000
FULLEST = Load(BIG, BIG, BIG, BIG, BIG)
PROJECTION = Projection((FULLEST,) * SAMPLES, 100_000, 100_000, 100_000, 100_000)
OPEN = bodies.Ballot(*HEAD, ROUND, Basis(Load(5), 2), 2, 2, 0, 7, 7, 4, 0, 5)
FROZEN = bodies.Ballot(
    255, Mandate(2**40 - 1, 1000), 2**48 - 1, Round(EpochId(2**40 - 1, 1000, 1000), 12),
    Basis(FULLEST, 100_000), 100_000, 100_000, 100_000, 2**56 - 1, 2**56 - 1, 2**31 - 1,
    preferences.MAX_SCORE - 1, BIG, PROJECTION,
)  # fmt: skip
EXAMPLES: list[Body] = [
    bodies.Epoch(*HEAD, ROUND, 0, 90, 100, 2, bytes(32), "stage 1 has 0 of 2 replicas"),
    OPEN,
    FROZEN,
    bodies.Attest(*HEAD, ROUND, True, bytes(32)),
    bodies.Call(*HEAD, peer(1), ROUND),
    bodies.Vote(*HEAD, peer(1), ROUND, 3, 1),
    bodies.Keep(*HEAD, peer(1), ROUND, 77),
    bodies.Drop(*HEAD, peer(1), ROUND, 77),
    bodies.Intent(*HEAD, peer(1), ROUND, 2, None),
    bodies.Noted(*HEAD, peer(1), ROUND, 2),
]
ids = [type(body).__name__ for body in EXAMPLES]


def refused(kind: str, encoded: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        bodies.decode(kind, encoded)
    return caught.value.reason


@pytest.mark.parametrize("body", EXAMPLES, ids=ids)
def test_round_trip(body: Body) -> None:
    assert bodies.decode(bodies.KINDS[type(body)], encode_body(body)) == body


def test_the_largest_ballot_is_small() -> None:
    assert len(encode_body(FROZEN)) < 1100


@pytest.mark.parametrize("body", EXAMPLES, ids=ids)
def test_a_body_is_only_valid_under_its_own_kind(body: Body) -> None:
    for other, kind in bodies.KINDS.items():
        if other is not type(body):
            reason = refused(kind, encode_body(body))
            assert reason in ("matching-body-malformed", "matching-body-too-long")


@pytest.mark.parametrize("body", EXAMPLES, ids=ids)
def test_every_field_refuses_absurd_values(body: Body) -> None:
    plain = msgspec.msgpack.decode(encode_body(body))
    for position, value in enumerate(plain):
        for absurd in (math.nan, math.inf, -1, 1e30, 2**63, None, [], "x" * 300, b"x"):
            if value == absurd or (isinstance(value, str) and isinstance(absurd, str)):
                continue
            if (
                absurd is None
                and (value is None or isinstance(value, int | list))
                and (position == len(plain) - 1 and isinstance(body, bodies.Intent | bodies.Ballot))
            ):
                continue
            spoiled = msgspec.msgpack.encode([*plain[:position], absurd, *plain[position + 1 :]])
            assert refused(bodies.KINDS[type(body)], spoiled).startswith("matching-body-")


@pytest.mark.parametrize("body", EXAMPLES, ids=ids)
def test_truncated_and_padded_bodies_are_refused(body: Body) -> None:
    kind, encoded = bodies.KINDS[type(body)], encode_body(body)
    for length in range(len(encoded)):
        refused(kind, encoded[:length])
    refused(kind, encoded + b"\0")
    assert refused(kind, encoded + b"\0" * 2048) == "matching-body-too-long"


@given(st.sampled_from(sorted(bodies.KINDS.values())), st.binary(max_size=200))
def test_noise_is_refused(kind: str, noise: bytes) -> None:
    refused(kind, noise)


def test_a_decision_and_a_plan_have_keys_of_their_own() -> None:
    assert [bodies.key_of(b) for b in EXAMPLES[:4] if isinstance(b, bodies.Spread)] == [
        "epoch",
        "0",
        "255",
        "epoch",
    ]
