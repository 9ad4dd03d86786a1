"""What may wait to be sent; a peer that takes less than it asks for loses its link."""

import pytest
import trio

from client.net.backlog import MOST_BYTES, MOST_BYTES_IN_ALL, ROUNDS, SHARE, Backlog
from client.net.network import PeerDown
from protocol.ids import peer_id_from_key
from protocol.wire.messages import Backward, Goodbye
from tests.support.loopback import Networks

PEERS = [peer_id_from_key(bytes([number]) * 32) for number in range(8)]
PART = bytes(8 * 2**20)
MOST_PARTS = MOST_BYTES["bulk"] // len(PART)


def test_for_one_peer_so_much_may_wait() -> None:
    most = MOST_BYTES["control"]
    assert Backlog().slow_reader(PEERS[0], "control", {PEERS[0]: most, PEERS[1]: 0}) is None
    assert Backlog().slow_reader(PEERS[0], "control", {PEERS[0]: most + 1, PEERS[1]: 0}) == PEERS[0]


def test_nobody_is_looked_for_while_little_waits_for_a_peer() -> None:
    usual, large = Backlog(), Backlog(MOST_BYTES["bulk"])
    share = MOST_BYTES_IN_ALL["bulk"] // SHARE
    assert [usual.is_long("bulk", size) for size in (share, share + 1)] == [False, True]
    assert not large.is_long("bulk", share + 1)


def test_in_all_the_one_for_whom_most_waits_goes() -> None:
    each = MOST_BYTES_IN_ALL["control"] // len(PEERS)
    waiting = dict.fromkeys(PEERS, each)
    assert Backlog().slow_reader(PEERS[0], "control", waiting) is None
    assert Backlog().slow_reader(PEERS[0], "control", waiting | {PEERS[3]: each + 1}) == PEERS[3]


@pytest.mark.parametrize("lane", ["bulk", "control"])
def test_rounds_of_a_large_stage_may_wait_whole(lane: str) -> None:
    gradient = MOST_BYTES["bulk"]
    waiting = {PEERS[0]: ROUNDS * gradient}
    slow = Backlog(gradient).slow_reader(PEERS[0], lane, waiting)  # type: ignore[arg-type]
    assert slow == (None if lane == "bulk" else PEERS[0])
    assert Backlog().slow_reader(PEERS[0], "bulk", waiting) == PEERS[0]


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
