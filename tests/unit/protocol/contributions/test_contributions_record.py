"""Counted records: what they may say."""

from __future__ import annotations

import math

import msgspec
import pytest

from protocol.contributions.record import (
    MAX_COUNTED,
    MAX_COUNTED_BYTES,
    Counted,
    Counts,
    StageCounts,
    encode_counts,
    parse_counts,
)
from protocol.errors import LocalProtocolError, RemoteProtocolError
from tests.support.protocol_examples import peer

STAGES, PER_STEP = 4, 6
TWO, THREE = sorted((peer(2), peer(3)))
GOOD = Counts((StageCounts(1, 10, (Counted(TWO, 40), Counted(THREE, 20))),))


def raw(*members: object, stage: object = 1, version: object = 10) -> bytes:
    return msgspec.msgpack.encode([[[stage, version, list(members)]]])


def parse(body: bytes, key: str = peer(1)) -> Counts:
    return parse_counts(body, key, peer(1), STAGES, PER_STEP)


def test_a_record_round_trips_and_the_longest_fits() -> None:
    assert parse(encode_counts(GOOD)) == GOOD
    names = sorted(peer(n) for n in range(MAX_COUNTED))
    members = tuple(Counted(name, 2**53 // MAX_COUNTED) for name in names)
    body = encode_counts(Counts((StageCounts(255, 2**40, members),)))
    assert len(body) <= MAX_COUNTED_BYTES
    assert parse_counts(body, peer(1), peer(1), 256, 16_384).stages[0].members == members


@pytest.mark.parametrize(
    "body",
    [
        raw([TWO, math.nan]),
        raw([TWO, 1.0]),
        raw([TWO, 0]),
        raw([TWO, -1]),
        raw([TWO, 2**53]),
        raw([TWO, 61]),  # more than ten steps of six
        raw([TWO, 31], [THREE, 30]),
        raw([THREE, 1], [TWO, 1]),
        raw([TWO, 1], [TWO, 1]),
        raw(["nobody", 1]),
        raw([7, 1]),
        raw([TWO]),
        raw([TWO, 1, 1]),
        raw([TWO, 1], stage=STAGES),
        raw([TWO, 1], stage=-1),
        raw([TWO, 1], version=2**41),
        msgspec.msgpack.encode([[[1, 1, []], [1, 1, []]]]),
        msgspec.msgpack.encode([[[n, 1, []] for n in range(5)]]),
        msgspec.msgpack.encode(
            [[[0, 99, [[peer(n), 1] for n in range(MAX_COUNTED + 1)]]]],
        ),
        encode_counts(GOOD) + b"\x00",
        b"",
        b"\xc1",
        b"\x91" * 5000,
    ],
)
def test_absurd_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(body)


def test_a_record_that_names_too_many_over_its_stages_is_refused() -> None:
    names = sorted(peer(n) for n in range(MAX_COUNTED // 2 + 1))
    members = tuple(Counted(name, 1) for name in names)
    body = encode_counts(Counts((StageCounts(0, 99, members), StageCounts(1, 99, members))))
    with pytest.raises(RemoteProtocolError, match="absurd"):
        parse(body)


def test_nobody_speaks_in_anothers_name_and_we_say_nothing_absurd() -> None:
    with pytest.raises(RemoteProtocolError, match="forged"):
        parse(encode_counts(GOOD), key=peer(3))
    with pytest.raises(LocalProtocolError):
        encode_counts(Counts((StageCounts(1, 1, (Counted(TWO, 0),)),)))
