"""Counted records: accepted and refused ones, replays, and their way through a swarm."""

from __future__ import annotations

import math

import msgspec
import pytest

from protocol.contributions.record import (
    COUNTED,
    MAX_COUNTED,
    MAX_COUNTED_BYTES,
    Counted,
    Counts,
    StageCounts,
    encode_counts,
    parse_counts,
)
from protocol.effects import Penalise
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.membership.record import Record, seal
from protocol.membership.rules import COUNTED_GAP_MS, ttl_s
from protocol.membership.view import RecordChanged, RecordGone
from protocol.wire.messages import Records
from tests.support.membership_world import World
from tests.support.protocol_examples import OTHER_SWARM, SWARM, WALL, peer, signer

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


def sealed(body: bytes, author: int = 2, key: str = "", seq: int = 10**12, swarm=SWARM) -> object:  # type: ignore[no-untyped-def]
    record = Record(key or peer(author), seq, int(WALL) + 100, 600, body)
    return seal(signer(author), COUNTED, record, swarm)


def linked() -> World:
    world = World(3, stages=STAGES)
    world.advertise()
    world.link_all()
    world.run(6)
    return world


def offer(world: World, envelope: object) -> list[object]:
    records = Records([envelope])  # type: ignore[list-item]
    effects = world.members[peer(0)].receive(peer(1), records, world.now, world.wall)
    return [e for e in effects if isinstance(e, RecordChanged | Penalise)]


def test_forged_foreign_and_absurd_records_change_nothing_and_are_counted() -> None:
    world, good = linked(), encode_counts(GOOD)
    hostile = [
        sealed(good, key=peer(1)),
        sealed(good, swarm=OTHER_SWARM),
        sealed(raw([TWO, 2**52])),
        sealed(b"\x00" * (MAX_COUNTED_BYTES + 1)),
    ]
    for envelope in hostile:
        (effect,) = offer(world, envelope)
        assert isinstance(effect, Penalise)
        assert effect.points >= 20
    assert world.members[peer(0)].records.get(COUNTED, peer(2)) is None


def test_replays_and_records_in_quick_succession_change_nothing() -> None:
    world, good = linked(), encode_counts(GOOD)
    first = sealed(good)
    assert len(offer(world, first)) == 1
    assert offer(world, first) == []
    assert offer(world, sealed(good, seq=10**12 + COUNTED_GAP_MS - 1)) == []
    assert len(offer(world, sealed(good, seq=10**12 + COUNTED_GAP_MS))) == 1
    assert offer(world, first) == []


def test_what_one_counted_reaches_all_and_expires() -> None:
    world = linked()
    world.perform(peer(0), world.members[peer(0)].say(COUNTED, encode_counts(GOOD), world.wall))
    world.run(6)
    for name, seen in world.seen.items():
        got = [e for e in seen if isinstance(e, RecordChanged) and e.kind == COUNTED]
        assert [(e.signer, e.body) for e in got] == [(peer(0), encode_counts(GOOD))], name
    world.run(ttl_s(COUNTED, 0) + 5, step=5)
    assert all(RecordGone(COUNTED, peer(0)) in seen for seen in world.seen.values())
