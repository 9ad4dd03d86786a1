"""A link: the traffic between us and one peer, over one or more connections.

State: one outbound queue per lane and the carriers at work, of which at most one takes
frames from the queues. When both sides dial each other at once, both keep the connection dialled by
the smaller peer id. The other is retired only once our lanes on the first are negotiated: by then
the peer knows both connections, and does not take the end of one for the end of the link. A direct
connection is kept rather than one through a relay: when one side has announced that it dials the
other, the new connection takes over from the relayed one in the midst of the link.

A peer that returns has lost its link, even if we have not noticed: it gets a new one, and the rest
of the client is told the end of the old one first.
"""

from __future__ import annotations

import math
from operator import attrgetter

import trio

from client.net.carrier import LANES, Carrier, Outgoing
from client.net.host import Connection
from client.net.queues import ByteQueue
from protocol.ids import PeerId

CROSSING_S = 15.0
"""Seconds after which a peer's earlier dial must have arrived: a dial takes 10 s."""
REPLACED = "replaced by another connection"


class Link:
    """The queues and carriers between ``own`` and ``peer``."""

    def __init__(self, own: PeerId, peer: PeerId) -> None:
        self._own = own
        self.peer = peer
        self.queues = {name: ByteQueue[Outgoing](attrgetter("size_bytes")) for name in LANES}
        self._carriers: list[Carrier] = []
        self._active: Carrier | None = None
        self._up_at = 0.0
        self._moving_until = -math.inf
        self._doubted: tuple[Connection, int] | None = None
        """The connection that did not answer, and the bytes that it had received by then."""
        self.admitted = trio.Event()
        """Set once the peer's Hello has been accepted; before, little that it says is taken."""
        self.sent = trio.lowlevel.ParkingLot()
        """Unparked when frames have been handed to a connection, or the last one has ended."""
        self.greetings = 0
        """Messages that it has said before."""
        self.too_early = 0
        """Messages that it has said before any of these."""
        self.up = trio.Event()
        """Set once all lanes have been agreed on; a link comes up once in its life."""
        self.gone = trio.Event()
        """Set once the last connection has ended."""

    @property
    def works(self) -> bool:
        """Whether messages can be sent to the peer now."""
        return self.up.is_set() and any(carrier.live for carrier in self._carriers)

    @property
    def in_doubt(self) -> bool:
        """Whether the peer does not answer, and was not heard since."""
        connection = self.connection
        return connection is not None and self._doubted == (connection, connection.bytes_in)

    def doubt(self) -> None:
        """Note that the peer does not answer."""
        if (connection := self.connection) is not None:
            self._doubted = connection, connection.bytes_in

    @property
    def connection(self) -> Connection | None:
        """The connection that takes the frames; None while there is none."""
        return self._active.connection if self._active else None

    @property
    def carriers(self) -> tuple[Carrier, ...]:
        """The carriers at work, retired ones included."""
        return tuple(self._carriers)

    def is_over_for(self, connection: Connection) -> bool:
        """Whether a new connection shows that the peer has lost this link, or we have."""
        live = [carrier for carrier in self._carriers if carrier.live]
        if not live or not self.up.is_set() or self._active not in live:
            return not live
        if self.in_doubt:
            return True
        if self._moves_to(connection):
            return False
        if connection.dialled == self._active.connection.dialled:
            return True
        # Our own dial began when we had no link. The peer's may have, for a while.
        return not connection.dialled and trio.current_time() - self._up_at > CROSSING_S

    def attach(self, carrier: Carrier) -> None:
        """Add a connection; one by the same dialler that has not come up is given up."""
        for other in self._carriers:
            if other.live and _way(other.connection) == _way(carrier.connection):
                other.connection.close(REPLACED)
        self._carriers.append(carrier)

    def settle(self) -> bool:
        """Decide which connection takes the frames; return whether the link has just come up.

        Call it when a connection was added, became ready, or ended.
        """
        live = [carrier for carrier in self._carriers if carrier.live]
        best = max(live, key=self._preference, default=None)
        if best is None or not best.ready:
            return False
        others = [carrier for carrier in self._carriers if carrier is not best]
        for other in others:
            other.retire(REPLACED)
        if best is not self._active:
            self._active, self._up_at = best, trio.current_time()
            best.begin(tuple(other.connection.ended for other in others))
        if self.up.is_set():
            return False
        self.up.set()
        return True

    def moving(self) -> None:
        """The peer is about to dial us, or knows that we are about to dial it."""
        self._moving_until = trio.current_time() + CROSSING_S

    def _moves_to(self, connection: Connection) -> bool:
        """Whether a new connection takes over from a relayed one, as announced. Without the
        announcement, a peer that comes directly has begun anew."""
        relayed = self._active is not None and self._active.connection.relay is not None
        return relayed and connection.relay is None and trio.current_time() < self._moving_until

    def detach(self, carrier: Carrier) -> bool:
        """Remove a connection that ended; return whether it was the last."""
        self._carriers.remove(carrier)
        if self._active is carrier:
            self._active = None
        if self._carriers:
            return False
        for queue in self.queues.values():
            queue.close()
            while len(queue):
                queue.receive_nowait()
        self.gone.set()
        self.sent.unpark_all()
        return True

    def close(self, reason: str) -> None:
        """End every connection of this link."""
        for carrier in self._carriers:
            carrier.connection.close(reason)

    async def finish(self, reason: str) -> None:
        """End the link once what is queued has been written and the peer has finished too.

        The deadline is the caller's; after it, `close`.
        """
        while any(self.queues.values()):
            await self.sent.park()
        for carrier in self._carriers:
            carrier.retire(reason)
        await self.gone.wait()

    def unsent_bytes(self, name: str) -> int:
        """Return the bytes of a lane not yet handed to a connection."""
        writing = sum(carrier.unsent_bytes(name) for carrier in self._carriers)
        return self.queues[name].size_bytes + writing

    def _preference(self, carrier: Carrier) -> tuple[bool, bool]:
        """Both sides prefer the same connection: a direct one, then that of the smaller id."""
        connection = carrier.connection
        return connection.relay is None, connection.dialled == (self._own < self.peer)


def _way(connection: Connection) -> tuple[bool, bool]:
    return connection.dialled, connection.relay is None
