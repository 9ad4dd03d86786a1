"""What may wait to be sent; a peer that takes less than it asks for loses its link."""

import pytest

from client.net.libp2p_network import LEAST_SHARE, MOST_WAITING_BYTES, ROUNDS
from client.net.network import PeerDown
from protocol.wire.messages import Backward, Goodbye
from tests.support.arrivals import is_up
from tests.support.loopback import Networks

PART = bytes(8 * 2**20)
MOST_PARTS = MOST_WAITING_BYTES["bulk"] // len(PART)


@pytest.mark.parametrize("gradients", [0, 1])
async def test_nobody_waits_for_one_that_does_not_read_and_its_link_ends(
    networks: Networks, gradients: int
) -> None:
    """All of a round of a large stage may wait."""
    async with networks() as a, networks() as b, networks() as c:
        b.expect_payloads(len(PART), len(PART), gradients * len(PART) * MOST_PARTS)
        most = ROUNDS * MOST_PARTS if gradients else MOST_PARTS
        for other in (a, c):
            await b.connect(other.addresses[0])
            await is_up(b, other)
        few = most // LEAST_SHARE - 1
        for peer, count in ((c.peer_id, few), (a.peer_id, most - few - 1)):
            for _ in range(count):
                assert b.post(peer, Backward(0, 1, 0), PART), "nobody reads their events"
        assert b.statistics().peers == (a.peer_id, c.peer_id)
        for peer in (c.peer_id, a.peer_id):
            b.post(peer, Backward(0, 1, 0), PART)
        while not isinstance(told := await b.events.receive(), PeerDown):
            pass  # they had come up
        assert told == PeerDown(a.peer_id, "it reads more slowly than it requests data")
        assert not b.post(a.peer_id, Goodbye("too late"))
        assert b.statistics().peers == (c.peer_id,)
