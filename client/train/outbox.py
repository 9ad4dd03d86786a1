"""The way out to other peers: queues what a link has no room for, drops what has no link."""

from __future__ import annotations

from contextlib import suppress

import trio

from client.net.errors import LinkFull, PeerUnreachable
from client.net.network import Network
from protocol.ids import PeerId
from protocol.wire.messages import Message


class Outbox:
    """Sends without making anybody wait; membership says who is gone, not the outbox."""

    def __init__(self, network: Network, nursery: trio.Nursery) -> None:
        self._network, self._nursery = network, nursery

    def put(self, peer: PeerId, message: Message, payload: bytes) -> bool:
        """Queue a message; return whether the link took it at once."""
        try:
            self._network.send_nowait(peer, message, payload)
        except PeerUnreachable:
            return False
        except LinkFull:
            self._nursery.start_soon(self._later, peer, message, payload)
            return False
        return True

    async def _later(self, peer: PeerId, message: Message, payload: bytes) -> None:
        with suppress(PeerUnreachable):
            await self._network.send(peer, message, payload)
