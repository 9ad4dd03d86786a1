"""A link: everything between us and one peer, whatever connections carry it.

State: one bounded outbound queue per lane, which outlives a change of connection, and the carriers
at work, of which at most one takes frames from the queues. When both sides dial each other at once,
both keep the connection dialled by the smaller peer id; a second connection from the same dialler
replaces the first (the peer has restarted, or its network changed). The other one is retired.
"""

from __future__ import annotations

import trio

from client.net.carrier import LANES, Carrier, Outgoing
from client.net.errors import LinkFull, PeerUnreachable
from client.net.queues import BoundedQueue
from protocol.ids import PeerId
from protocol.wire.messages import Message, lane

QUEUE_ITEMS = 1024
QUEUE_BYTES = {
    "control": 8 * 1024 * 1024,
    "bulk": 64 * 1024 * 1024,
    "background": 64 * 1024 * 1024,
}
"""Outbound bounds: a second or so of traffic; beyond it, waiting is the sender's business."""
_REPLACED = "replaced by another connection"


class Link:
    """The queues and carriers between ``own`` and ``peer``."""

    def __init__(self, own: PeerId, peer: PeerId) -> None:
        self._own = own
        self.peer = peer
        self.queues = {
            name: BoundedQueue[Outgoing](QUEUE_ITEMS, QUEUE_BYTES[name], _size) for name in LANES
        }
        self._carriers: list[Carrier] = []
        self._active: Carrier | None = None
        self.up = trio.Event()
        """Set once all lanes have been agreed on; a link comes up once in its life."""
        self.gone = trio.Event()
        """Set once the last connection has ended."""
        self.announced = trio.Event()
        """Set once the rest of the client has been told; nothing is delivered before."""

    @property
    def rtt_s(self) -> float | None:
        """Smoothed round trip, None until the first pong."""
        return self._active.rtt_s if self._active else None

    @property
    def carriers(self) -> tuple[Carrier, ...]:
        """The carriers at work, retired ones included."""
        return tuple(self._carriers)

    def attach(self, carrier: Carrier) -> None:
        """Add a connection and decide which one takes the frames."""
        self._carriers.append(carrier)
        if self._active is None:
            self._active = carrier
        elif self._wins(carrier, self._active):
            self._active.retire(_REPLACED)
            self._active = carrier
        else:
            carrier.retire(_REPLACED)

    def detach(self, carrier: Carrier) -> bool:
        """Remove a connection that ended; return whether it was the last."""
        self._carriers.remove(carrier)
        if self._active is carrier:
            self._active = None
        if not self._carriers:
            for queue in self.queues.values():
                queue.close()
            self.gone.set()
        return not self._carriers

    def close(self, reason: str) -> None:
        """End every connection of this link."""
        for carrier in self._carriers:
            carrier.connection.close(reason)

    async def finish(self, reason: str) -> None:
        """End the link once what is queued has been written and the peer has finished too.

        The deadline is the caller's; after it, `close`.
        """
        for queue in self.queues.values():
            await queue.wait_empty()
        for carrier in self._carriers:
            carrier.retire(reason)
        await self.gone.wait()

    async def send(self, message: Message, frame: Outgoing) -> None:
        """Queue a frame, waiting for room; raises PeerUnreachable when the link ends first."""
        try:
            await self.queues[lane(message)].put(frame)
        except trio.ClosedResourceError:
            raise PeerUnreachable(f"the link to {self.peer} ended") from None

    def send_nowait(self, message: Message, frame: Outgoing) -> None:
        """Queue a frame or raise LinkFull or PeerUnreachable."""
        try:
            self.queues[lane(message)].put_nowait(frame)
        except trio.ClosedResourceError:
            raise PeerUnreachable(f"the link to {self.peer} ended") from None
        except LinkFull as error:
            raise LinkFull(f"{lane(message)} lane to {self.peer}: {error}") from None

    def _wins(self, new: Carrier, old: Carrier) -> bool:
        if new.connection.dialled == old.connection.dialled:
            return True
        return new.connection.dialled == (self._own < self.peer)


def _size(frame: Outgoing) -> int:
    return frame.size_bytes
