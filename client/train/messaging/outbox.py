"""The outbox to other peers: queues messages while a link is full, drops them without a link.

The queues are bounded per peer and in all; a peer that reads less than it requests loses its link.
"""

from __future__ import annotations

from collections import Counter, deque

import trio

from client.net.errors import LinkFull, PeerUnreachable
from client.net.network import Network
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId
from protocol.wire.messages import Message

MIB = 1024 * 1024
MOST_BYTES = {"control": 8 * MIB, "bulk": 512 * MIB, "background": 8 * MIB}
"""Bytes queued for one peer beyond the queue of its link: eight segments of the largest size (more
where a run's stages are larger), and more small messages than a reading peer leaves unread."""
MOST_BYTES_IN_ALL = {"control": 32 * MIB, "bulk": 1024 * MIB, "background": 32 * MIB}
"""Bytes queued for all peers; beyond it, the peer with the longest queue is disconnected."""
ROUNDS = 3
"""Gradients of a stage that are queued for one peer at least: what it sums, the sums, and those of
the step before. All of a round are queued at once."""
HEADER_BYTES = 512
"""Estimated bytes of a message beside its payload; headers are encoded later."""


class Outbox:
    """Sends without waiting; lost peers are detected by membership, not here.

    State: by peer and lane, the messages that wait for room. No message overtakes them, so that the
    order of a lane is kept; when the link ends, its messages are dropped.

    Args:
        network: sends.
        nursery: runs what sends later.
        round_bytes: of a stage's gradient in the run, as it is averaged.
    """

    def __init__(self, network: Network, nursery: trio.Nursery, round_bytes: int = 0) -> None:
        self._network, self._nursery = network, nursery
        least = ROUNDS * round_bytes
        self._most = MOST_BYTES | {"bulk": max(MOST_BYTES["bulk"], least)}
        self._most_in_all = MOST_BYTES_IN_ALL | {"bulk": max(MOST_BYTES_IN_ALL["bulk"], 2 * least)}
        self._waiting: dict[tuple[PeerId, str], deque[tuple[Message, bytes]]] = {}
        self._bytes = Counter[tuple[PeerId, str]]()
        self._given_up = set[PeerId]()

    def put(self, peer: PeerId, message: Message, payload: bytes) -> bool:
        """Queue a message; return whether the link took it at once.

        Raises LocalProtocolError for a payload that no peer would accept.
        """
        if len(payload) > message.route.payload_limit:
            raise LocalProtocolError(f"{type(message).__name__} with {len(payload)} bytes")
        name = message.route.lane
        if (peer, name) in self._waiting:
            self._wait(peer, name, message, payload)
            return False
        try:
            self._network.send_nowait(peer, message, payload)
        except PeerUnreachable:
            return False
        except LinkFull:
            self._waiting[peer, name] = deque()
            self._wait(peer, name, message, payload)
            self._nursery.start_soon(self._later, peer, name)
            return False
        return True

    def _wait(self, peer: PeerId, name: str, message: Message, payload: bytes) -> None:
        """Queue a message, unless the queues are full."""
        if peer in self._given_up:
            return
        self._waiting[peer, name].append((message, payload))
        self._bytes[peer, name] += len(payload) + HEADER_BYTES
        total = sum(size for (_, lane), size in self._bytes.items() if lane == name)
        if self._bytes[peer, name] > self._most[name]:
            self._give_up(peer)
        elif total > self._most_in_all[name]:
            lane_of = {whose: size for (whose, lane), size in self._bytes.items() if lane == name}
            self._give_up(max(lane_of, key=lambda whose: lane_of[whose]))

    def _give_up(self, peer: PeerId) -> None:
        """End the link of a peer that reads too slowly, and drop its messages."""
        self._given_up.add(peer)
        for whose, waiting in self._waiting.items():
            if whose[0] == peer:
                waiting.clear()
                self._bytes[whose] = 0
        self._nursery.start_soon(self._cut, peer)

    async def _cut(self, peer: PeerId) -> None:
        try:
            await self._network.disconnect(peer, "it reads more slowly than it requests data")
        finally:
            self._given_up.discard(peer)

    async def _later(self, peer: PeerId, name: str) -> None:
        waiting = self._waiting[peer, name]
        try:
            while waiting:
                message, payload = waiting.popleft()
                self._bytes[peer, name] -= len(payload) + HEADER_BYTES
                await self._network.send(peer, message, payload)
        except PeerUnreachable:
            return
        finally:
            del self._waiting[peer, name]
            del self._bytes[peer, name]
