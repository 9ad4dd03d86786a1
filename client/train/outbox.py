"""The way out to other peers: queues what a link has no room for, drops what has no link."""

from __future__ import annotations

from collections import deque

import trio

from client.net.errors import LinkFull, PeerUnreachable
from client.net.network import Network
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId
from protocol.wire.messages import Message, lane, payload_limit


class Outbox:
    """Sends without making anybody wait; membership says who is gone, not the outbox.

    State: by peer and lane, what waits for room. Nothing overtakes what waits, so that the order of
    a lane is kept; when the link ends, what waits for it is dropped.
    """

    def __init__(self, network: Network, nursery: trio.Nursery) -> None:
        self._network, self._nursery = network, nursery
        self._waiting: dict[tuple[PeerId, str], deque[tuple[Message, bytes]]] = {}

    def put(self, peer: PeerId, message: Message, payload: bytes) -> bool:
        """Queue a message; return whether the link took it at once.

        Raises LocalProtocolError for a payload that no peer would accept.
        """
        if len(payload) > payload_limit(message):
            raise LocalProtocolError(f"{type(message).__name__} with {len(payload)} bytes")
        name = lane(message)
        if (peer, name) in self._waiting:
            self._waiting[peer, name].append((message, payload))
            return False
        try:
            self._network.send_nowait(peer, message, payload)
        except PeerUnreachable:
            return False
        except LinkFull:
            self._waiting[peer, name] = deque([(message, payload)])
            self._nursery.start_soon(self._later, peer, name)
            return False
        return True

    async def _later(self, peer: PeerId, name: str) -> None:
        waiting = self._waiting[peer, name]
        try:
            while waiting:
                await self._network.send(peer, *waiting.popleft())
        except PeerUnreachable:
            return
        finally:
            del self._waiting[peer, name]
