"""Measured records: what they may say."""

import math

import msgspec
import pytest

from protocol.effects import Publish
from protocol.errors import RemoteProtocolError
from protocol.membership.losses import PROGRESS, LossSaid
from protocol.membership.measured import (
    MAX_MEASURED_BYTES,
    MAX_PARTNERS,
    MAX_RATES,
    MEASURED,
    MEASUREMENTS,
    Measurements,
    Partner,
    StageRate,
)
from protocol.membership.rules import ttl_s
from protocol.membership.view import RecordChanged
from tests.support.membership_world import World
from tests.support.protocol_examples import peer, seat

STAGES = 4
GOOD = Measurements((Partner(peer(2), (StageRate(1, 2_000_000, 300),)),))


def raw(*rates: object, subject: object = peer(2)) -> bytes:
    return msgspec.msgpack.encode([[[subject, list(rates)]]])


def test_the_longest_record_fits_and_round_trips() -> None:
    rates = tuple(StageRate(250 + n, 10**12, 3600) for n in range(MAX_RATES))
    names = sorted(peer(n) for n in range(2, 2 + MAX_PARTNERS))
    full = Measurements(tuple(Partner(name, rates) for name in names))
    body = MEASUREMENTS.encode(full)
    assert len(body) <= MAX_MEASURED_BYTES
    assert MEASUREMENTS.parse(body) == full


@pytest.mark.parametrize(
    "body",
    [
        raw([1, math.nan, 300]),
        raw([1, 2e6, 300]),
        raw([1, -1, 300]),
        raw([1, 10**12 + 1, 300]),
        raw([1, 10, 3601]),
        raw([256, 10, 10]),
        raw([1, 10, 10], subject=""),
        msgspec.msgpack.encode([[[peer(n)] for n in range(2, 3 + MAX_PARTNERS)]]),
        MEASUREMENTS.encode(GOOD) + b"\x00",
        b"",
        b"\x91" * 5000,
    ],
)
def test_absurd_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        MEASUREMENTS.parse(body)


@pytest.fixture
def world() -> World:
    world = World(3, stages=STAGES)
    world.advertise()
    world.link_all()
    world.run(6)
    return world


def test_what_one_measures_reaches_all_and_expires(world: World) -> None:
    world.perform(peer(0), [Publish(MEASURED, GOOD)])
    world.run(6)
    for name, seen in world.seen.items():
        got = [e for e in seen if isinstance(e, RecordChanged)]
        assert got == [RecordChanged(MEASURED, peer(0), GOOD)], name
    world.run(ttl_s(MEASURED, 0) + 5, step=5)
    assert all(RecordChanged(MEASURED, peer(0), None) in seen for seen in world.seen.values())


def test_only_losses_of_those_that_serve_the_last_stage_count(world: World) -> None:
    for number in (1, 2):
        held = seat(STAGES - number)
        world.perform(peer(number), world.members[peer(number)].set_seats([held], world.now))
        world.perform(peer(number), [Publish(PROGRESS, LossSaid(5, 2.0))])
    world.run(6)
    assert world.members[peer(0)].losses(PROGRESS) == {peer(1): LossSaid(5, 2.0)}
