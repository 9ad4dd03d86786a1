"""What may wait to be sent; a peer that takes less than it asks for loses its link."""

import pytest
import trio

from client.net.backlog import MOST_BYTES, ROUNDS, SHARE, Backlog
from client.net.network import PeerDown
from protocol.ids import peer_id_from_key
from protocol.wire.messages import Backward, Goodbye
from protocol.wire.route import Lane
from tests.support.loopback import Networks

PEERS = [peer_id_from_key(bytes([number]) * 32) for number in range(8)]
PART = bytes(8 * 2**20)
MOST_PARTS = MOST_BYTES["bulk"] // len(PART)


def test_nobody_is_looked_for_while_little_waits_for_a_peer() -> None:
    usual, large = Backlog(), Backlog(MOST_BYTES["bulk"])
    share = MOST_BYTES["bulk"] // SHARE
    assert [usual.is_long("bulk", size) for size in (share, share + 1)] == [False, True]
    assert not large.is_long("bulk", share + 1)


def test_the_one_for_whom_most_waits_goes() -> None:
    waiting = dict.fromkeys(PEERS, MOST_BYTES["control"] // len(PEERS))
    assert Backlog().slow_reader("control", waiting) is None
    assert Backlog().slow_reader("control", waiting | {PEERS[3]: waiting[PEERS[3]] + 1}) == PEERS[3]


@pytest.mark.parametrize("lane", ["bulk", "control"])
def test_rounds_of_a_large_stage_may_wait_whole(lane: Lane) -> None:
    gradient = MOST_BYTES["bulk"]
    waiting = {PEERS[0]: ROUNDS * gradient}
    assert Backlog(gradient).slow_reader(lane, waiting) == (None if lane == "bulk" else PEERS[0])
    assert Backlog().slow_reader("bulk", waiting) == PEERS[0]


async def test_nobody_waits_for_one_that_does_not_read_and_its_link_ends(
    networks: Networks,
) -> None:
    async with networks() as a, networks() as b:
        await b.connect(a.addresses[0])
        for _ in range(MOST_PARTS - 1):
            assert b.post(a.peer_id, Backward(0, 1, 0), PART), "nobody reads a's events"
        await trio.sleep(0)
        assert b.statistics().peers == (a.peer_id,)
        for _ in range(20):
            b.post(a.peer_id, Backward(0, 1, 0), PART)
        await b.events.receive()  # it had come up
        assert await b.events.receive() == PeerDown(
            a.peer_id, "it reads more slowly than it requests data"
        )
        assert not b.post(a.peer_id, Goodbye("too late"))
