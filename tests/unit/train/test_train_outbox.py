"""The outbox: makes nobody wait, keeps the order of each lane, drops what has no link."""

from __future__ import annotations

from typing import cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from client.net.errors import PeerUnreachable
from client.net.network import Network
from client.net.queues import BoundedQueue
from client.train.outbox import Outbox
from protocol.errors import LocalProtocolError
from protocol.ids import peer_id_from_key
from protocol.wire.messages import Goodbye, Message

PEER = peer_id_from_key(bytes(32))


class Line:
    """A network with one link of one lane that holds two messages."""

    def __init__(self) -> None:
        self.queue = BoundedQueue[str](2, 1000, len)

    def send_nowait(self, peer: object, message: Message, payload: bytes) -> None:
        try:
            self.queue.put_nowait(cast(Goodbye, message).reason)
        except trio.ClosedResourceError:
            raise PeerUnreachable from None

    async def send(self, peer: object, message: Message, payload: bytes) -> None:
        try:
            await self.queue.put(cast(Goodbye, message).reason)
        except trio.ClosedResourceError:
            raise PeerUnreachable from None


async def test_what_waits_keeps_its_order_and_is_not_overtaken() -> None:
    line, count = Line(), 60
    async with trio.open_nursery() as nursery:
        outbox = Outbox(cast(Network, line), nursery)
        took = [outbox.put(PEER, Goodbye(str(number)), b"") for number in range(count)]
        assert took == [True] * 2 + [False] * (count - 2)
        got = [line.queue.receive_nowait()]
        outbox.put(PEER, Goodbye(str(count)), b"")  # there is room now, but not for this one
        got += [await line.queue.receive() for _ in range(count)]
        assert got == [str(number) for number in range(count + 1)]
        await wait_all_tasks_blocked()
        assert outbox.put(PEER, Goodbye("at once again"), b"")


async def test_what_waits_for_a_link_that_ends_is_dropped() -> None:
    line = Line()
    async with trio.open_nursery() as nursery:
        outbox = Outbox(cast(Network, line), nursery)
        for number in range(6):
            outbox.put(PEER, Goodbye(str(number)), b"")
        await wait_all_tasks_blocked()
        line.queue.close()
        await wait_all_tasks_blocked()
        line.queue = BoundedQueue[str](2, 1000, len)  # the peer is back
        assert outbox.put(PEER, Goodbye("new"), b"")
    assert line.queue.receive_nowait() == "new"
    assert len(line.queue) == 0


async def test_what_no_peer_would_accept_is_refused_also_while_others_wait() -> None:
    line = Line()
    async with trio.open_nursery() as nursery:
        outbox = Outbox(cast(Network, line), nursery)
        for number in range(3):
            outbox.put(PEER, Goodbye(str(number)), b"")
        with pytest.raises(LocalProtocolError):
            outbox.put(PEER, Goodbye("3"), b"x")
        nursery.cancel_scope.cancel()
