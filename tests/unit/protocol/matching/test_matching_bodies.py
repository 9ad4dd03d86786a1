"""Signed bodies: one encoding per meaning, and nothing absurd can be said."""

import math

import msgspec
import pytest

from protocol.errors import RemoteProtocolError
from protocol.matching import bodies
from protocol.wire import letters
from protocol.wire.letters import Mandate
from protocol.wire.messages import Letter, decode_message, encode_message
from tests.support.matching_examples import WALL_S, propose

MANDATE = Mandate(2_833_333, 1)
ISSUED = int(WALL_S * 1000)
EXAMPLES: list[letters.Body] = [
    propose(MANDATE),
    letters.Propose(0, MANDATE, ISSUED, 1, True),
    letters.Withdraw(0, MANDATE, ISSUED, "leaving"),
    letters.Hold(0, MANDATE, ISSUED, ISSUED, True),
    letters.Reject(0, MANDATE, ISSUED, 1, ISSUED, "full"),
    bodies.Posting(0, MANDATE, ISSUED, 1, 2, 5, 1, 5, 1, 6, 6, 2, 0),
]
ids = [type(body).__name__ for body in EXAMPLES]


def encode(body: letters.Body) -> bytes:
    if isinstance(body, bodies.Posting):
        return bodies.POSTINGS.encode(body)
    return encode_message(Letter(body))  # type: ignore[arg-type]


def decode(like: letters.Body, encoded: bytes) -> object:
    """Parse what should be a posting, or a letter, like another one."""
    if isinstance(like, bodies.Posting):
        return bodies.POSTINGS.parse(encoded)
    message = decode_message(encoded)
    assert isinstance(message, Letter)
    return message.body


def refused(like: letters.Body, encoded: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(like, encoded)
    return caught.value.reason


def malformed(like: letters.Body) -> str:
    return f"{'posting' if isinstance(like, bodies.Posting) else 'message'}-malformed"


def test_a_posting_is_no_letter_and_a_letter_no_posting() -> None:
    *said, posting = EXAMPLES
    assert refused(said[0], encode_message(Letter(posting))) == "message-malformed"  # type: ignore[arg-type]
    for letter in said:
        assert refused(posting, msgspec.msgpack.encode(letter)) == "posting-malformed"


@pytest.mark.parametrize("body", EXAMPLES, ids=ids)
def test_every_field_refuses_absurd_values(body: letters.Body) -> None:
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(body))
    for position in range(len(plain)):
        for absurd in (math.nan, math.inf, -1, 1e30, 2**63, None, [], "x" * 300, b"x"):
            if plain[position] == absurd or (position and isinstance(plain[position], str)):
                continue
            spoiled = [*plain[:position], absurd, *plain[position + 1 :]]
            if not isinstance(body, bodies.Posting):
                spoiled = ["Letter", spoiled]
            assert refused(body, msgspec.msgpack.encode(spoiled)) == malformed(body)


def test_a_wider_integer_of_the_same_value_is_not_canonical() -> None:
    posting = EXAMPLES[-1]
    encoded = encode(posting)
    assert encoded.endswith(b"\x00\xa0"), "no second replicas, and nobody wanted"
    wide = encoded[:-2] + b"\xcd\x00\x00" + encoded[-1:]
    assert refused(posting, wide) == "posting-malformed"


@pytest.mark.parametrize(("age_s", "fresh"), [(0, True), (179, True), (181, False), (-121, False)])
def test_freshness_tolerates_the_swarms_skew(age_s: float, fresh: bool) -> None:
    assert bodies.is_fresh(EXAMPLES[0], WALL_S + age_s) is fresh
