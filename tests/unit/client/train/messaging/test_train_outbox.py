"""The outbox: makes nobody wait, keeps the order of each lane, drops what has no link."""

from __future__ import annotations

from typing import cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from client.net.errors import PeerUnreachable
from client.net.network import Network
from client.net.queues import BoundedQueue
from client.train.messaging.outbox import HEADER_BYTES, MOST_BYTES, MOST_BYTES_IN_ALL, Outbox
from protocol.errors import LocalProtocolError
from protocol.ids import peer_id_from_key
from protocol.wire.messages import Goodbye, Message, Reduced

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


class Deaf(Line):
    """Nobody reads; who was cut."""

    def __init__(self) -> None:
        super().__init__()
        self.cut: list[object] = []

    async def disconnect(self, peer: object, reason: str) -> None:
        self.cut.append(peer)
        self.queue.close()
        await trio.lowlevel.checkpoint()


async def test_a_peer_that_takes_less_than_it_asks_for_loses_its_link() -> None:
    line, most = Deaf(), MOST_BYTES["control"] // HEADER_BYTES
    async with trio.open_nursery() as nursery:
        outbox = Outbox(cast(Network, line), nursery)
        for _ in range(most + 2):
            outbox.put(PEER, Goodbye("x"), b"")
        await wait_all_tasks_blocked()
        assert not line.cut
        for _ in range(10):
            outbox.put(PEER, Goodbye("x"), b"")
        await wait_all_tasks_blocked()
        assert line.cut == [PEER]
        assert not outbox._waiting
        assert not outbox._bytes
        nursery.cancel_scope.cancel()


async def test_in_all_the_one_for_whom_most_waits_goes() -> None:
    line = Deaf()
    peers = [peer_id_from_key(bytes([number]) * 32) for number in range(8)]
    each = MOST_BYTES_IN_ALL["control"] // HEADER_BYTES // len(peers)
    async with trio.open_nursery() as nursery:
        outbox = Outbox(cast(Network, line), nursery)
        for peer in peers:
            for _ in range(each + (50 if peer == peers[3] else 0)):
                outbox.put(peer, Goodbye("x"), b"")
        await wait_all_tasks_blocked()
        assert line.cut == [peers[3]]
        nursery.cancel_scope.cancel()


class Busy(Deaf):
    """Takes tensors, and nobody reads them."""

    def send_nowait(self, peer: object, message: Message, payload: bytes) -> None:
        super().send_nowait(peer, Goodbye("tensor"), b"")

    async def send(self, peer: object, message: Message, payload: bytes) -> None:
        await super().send(peer, Goodbye("tensor"), b"")


@pytest.mark.parametrize("gigabytes", [0.1, 2.0])
async def test_a_round_of_a_large_stage_is_queued_whole(gigabytes: float) -> None:
    """Its parts are queued all at once; a peer that reads none of three rounds loses its link."""
    line, part = Busy(), bytes(2**25)
    each = int(gigabytes * 2**30) // len(part)
    async with trio.open_nursery() as nursery:
        outbox = Outbox(cast(Network, line), nursery, round_bytes=each * len(part))
        for number in range(2 * each):
            outbox.put(PEER, Reduced(0, number, 1, 0, 1.0), part)
        await wait_all_tasks_blocked()
        assert not line.cut
        for number in range(2 * each + 20):
            outbox.put(PEER, Reduced(0, number, 2, 0, 1.0), part)
        await wait_all_tasks_blocked()
        assert line.cut == [PEER]
        nursery.cancel_scope.cancel()
