"""Records of members on their way through a swarm, whatever they say: forged, foreign and absurd
ones change nothing, nor do replays; an honest one reaches all and expires."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from protocol.effects import Penalise
from protocol.membership.measured import (
    MAX_MEASURED_BYTES,
    MEASURED,
    Measurements,
    Partner,
    StageRate,
    encode_measurements,
)
from protocol.membership.record import Record, seal
from protocol.membership.rules import MEASURED_GAP_MS, ttl_s
from protocol.membership.view import RecordChanged, RecordGone
from protocol.wire.messages import Records
from tests.support.membership_world import World
from tests.support.protocol_examples import OTHER_SWARM, SWARM, WALL, peer, signer

SEQ = 10**12


@dataclass(frozen=True)
class Kind:
    """A kind of record, and a body of it that is good for all."""

    name: str
    good: bytes
    most_bytes: int
    gap_ms: int

    def sealed(self, body: bytes, *, key: str = "", seq: int = SEQ, swarm: str = SWARM) -> object:
        record = Record(key or peer(2), seq, int(WALL) + 100, 600, body)
        return seal(signer(2), self.name, record, swarm)  # type: ignore[arg-type]


MEASURES = Measurements((Partner(peer(1), (StageRate(1, 5, 300),)),))
KINDS = (Kind(MEASURED, encode_measurements(MEASURES), MAX_MEASURED_BYTES, MEASURED_GAP_MS),)
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@pytest.fixture
def world() -> World:
    world = World(3, stages=4)
    world.advertise()
    world.link_all()
    world.run(6)
    return world


def offer(world: World, envelope: object) -> list[object]:
    records = Records([envelope])  # type: ignore[list-item]
    effects = world.members[peer(0)].receive(peer(1), records, world.now, world.wall)
    return [e for e in effects if isinstance(e, RecordChanged | Penalise)]


@each_kind
def test_forged_foreign_and_absurd_records_change_nothing_and_are_counted(
    kind: Kind, world: World
) -> None:
    hostile = [
        kind.sealed(kind.good, key=peer(1)),
        kind.sealed(kind.good, swarm=OTHER_SWARM),
        kind.sealed(kind.good + b"\xc0"),
        kind.sealed(b"\x00" * (kind.most_bytes + 1)),
    ]
    for envelope in hostile:
        (effect,) = offer(world, envelope)
        assert isinstance(effect, Penalise)
        assert effect.points >= 20
    assert world.members[peer(0)].records.get(kind.name, peer(2)) is None


@each_kind
def test_replays_and_records_in_quick_succession_change_nothing(kind: Kind, world: World) -> None:
    first = kind.sealed(kind.good)
    assert len(offer(world, first)) == 1
    assert offer(world, first) == []
    assert offer(world, kind.sealed(kind.good, seq=SEQ + kind.gap_ms - 1)) == []
    assert len(offer(world, kind.sealed(kind.good, seq=SEQ + kind.gap_ms))) == 1
    assert offer(world, first) == []


@each_kind
def test_what_one_says_reaches_all_and_expires(kind: Kind, world: World) -> None:
    author = world.members[peer(0)]
    world.perform(peer(0), author.say(kind.name, kind.good, world.wall))
    world.run(6)
    for name, seen in world.seen.items():
        got = [e for e in seen if isinstance(e, RecordChanged) and e.kind == kind.name]
        assert [(e.signer, e.body) for e in got] == [(peer(0), kind.good)], name
    world.run(ttl_s(kind.name, 0) + 5, step=5)
    assert all(RecordGone(kind.name, peer(0)) in seen for seen in world.seen.values())
