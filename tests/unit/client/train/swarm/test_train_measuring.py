"""Measured lines: messages in, and what the members' lines are taken for."""

from __future__ import annotations

import pytest

from client.train.swarm.measuring import Measuring
from protocol.ids import PeerId
from protocol.wire.messages import Chunk, ChunkRequest, Forward, Receipt
from tests.support.membership_world import World
from tests.support.protocol_examples import advert, peer


def download(machine: Measuring, donor: PeerId, start: float, rate: float) -> None:
    size, now = 2**21, start
    for index in range(4):
        machine.sent(donor, ChunkRequest("state", 0, 1, index), 0, now)
    for index in range(30):
        now += size / rate
        machine.received(donor, Chunk("state", 0, 1, index), size, now)
        if index < 26:
            machine.sent(donor, ChunkRequest("state", 0, 1, index + 4), 0, now)


def test_a_download_measures_the_donors_uplink_and_our_line() -> None:
    machine = Measuring()
    download(machine, peer(1), 0.0, 20e6)
    download(machine, peer(2), 100.0, 5e6)
    assert machine.incoming.own_bytes_per_s == pytest.approx(20e6, rel=0.02)
    assert machine.incoming.bytes_per_s(peer(2)) == pytest.approx(5e6, rel=0.02)


def test_serving_chunks_measures_the_receivers_downlink() -> None:
    machine = Measuring()
    for receiver, start, rate in ((peer(1), 0.0, 20e6), (peer(2), 100.0, 5e6)):
        now = start
        for index in range(40):
            if index >= 4:  # asked for when an earlier one has come
                now += 2**21 / rate
            machine.sent(receiver, Chunk("state", 0, 1, index), 2**21, now)
    assert machine.outgoing.bytes_per_s(peer(2)) == pytest.approx(5e6, rel=0.02)
    assert machine.outgoing.own_bytes_per_s == pytest.approx(20e6, rel=0.02)


def test_small_activations_measure_no_line_and_large_ones_do() -> None:
    machine = Measuring()
    for size, start in ((1000, 0.0), (2**22, 1000.0)):
        for m in range(50):
            now = start + m
            machine.sent(peer(1), Forward(1, 0, m, 1, 0, False), size, now)
            machine.received(peer(1), Receipt(1, 0, m, 1, "accepted"), 0, now + 0.5)
        best = machine.outgoing.own_best_bytes_per_s
        assert best == (0 if size == 1000 else pytest.approx(2**23))


def test_a_receipt_for_nothing_changes_nothing() -> None:
    machine = Measuring()
    machine.received(peer(1), Receipt(1, 0, 5, 1, "accepted"), 0, 1.0)
    machine.received(peer(1), Chunk("state", 0, 1, 5), 2**21, 2.0)
    machine.gone(peer(9))
    assert machine.incoming.own_s == machine.outgoing.own_s == 0


def test_a_line_far_slower_than_its_owner_claims_counts_as_measured() -> None:
    world = World(4, stages=2)
    for number, claim in enumerate((1e8, 1e8, 1e7, 0.0)):
        said = advert(upload_bytes_per_s=claim, download_limit_bytes_per_s=3e6)
        member = world.members[peer(number)]
        world.perform(peer(number), member.describe(said, world.now, world.wall))
    world.link_all()
    world.run(2)
    machine, roster = Measuring(), world.members[peer(0)].roster
    before = machine.lines(roster)
    download(machine, peer(0), 0.0, 60e6)
    for number in (1, 2, 3):
        download(machine, peer(number), 100.0 * number, 5e6)
    after = machine.lines(roster)
    assert [before[peer(n)][0] for n in range(4)] == [1e8, 1e8, 1e7, 0.0]
    uplinks = [after[peer(n)][0] for n in (1, 2, 3)]
    assert uplinks == pytest.approx([5e6, 1e7, 5e6], rel=0.02), "twice as much may be true"
    assert all(down == 3e6 for _, down in after.values()), "its owner's limit"
