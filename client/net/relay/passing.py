"""Passing circuits on: the driver of ``RelayServer``.

Each request has a task, that of its stream; circuits end with it. What comes from one side is given
back to that side's window only once the other side's connection has taken it, so 256 KiB wait in
each direction (``Holding``), and a slow reader slows its sender down. The bytes of
circuits wait for the rate that the owner lends, and behind the tensors of our own training
(``pacing.py``).

State: the machine, the shares, and the task of each request.
"""

from contextlib import suppress
from typing import Final

import trio

from client.net.errors import NetworkError
from client.net.host import Connection
from client.net.pacing import Pacer
from client.net.relay.exchange import Links, agreed, send_last, send_message
from client.net.relay.reaching import REVIEW_S
from client.net.relay.shares import MAX_PIECE_BYTES, Sender, Shares
from client.net.transport import closing
from client.net.yamux import YamuxStream
from protocol.hosts import is_loopback, prefix_of
from protocol.ids import PeerId
from protocol.pace import TICK_S
from protocol.relay.holding import Holding, Room
from protocol.relay.messages import Connect, Reserve, Status, Stop, WhereIs
from protocol.relay.server import Asked, RelayLimits, RelayServer

STALL_S: Final = 30.0
"""Seconds after which a side that takes nothing ends its circuit; data it takes earns time back."""


class PassingOn:
    """See the module's docstring; the nursery ends with the network."""

    def __init__(self, links: Links, nursery: trio.Nursery, upload: Pacer) -> None:
        self._links = links
        self._pace = upload.lanes["background"]
        self._lent = 0.0
        self.machine = RelayServer(links.peer_id, RelayLimits())
        self._shares = Shares()
        self._room = Room()
        self._requests: dict[Asked, trio.CancelScope] = {}
        nursery.start_soon(self._tick)
        nursery.start_soon(self._shares.run)

    def offer(self, *, relays: bool, rate_bytes_per_s: float = 0.0, drain_s: float = 0.0) -> None:
        """Relay from now on, or no longer.

        Args:
            relays: whether we do.
            rate_bytes_per_s: what circuits share; 0: no limit.
            drain_s: if we do no longer, when circuits end.
        """
        if not relays:
            self.machine.drain(drain_s, trio.current_time())
            return
        self.machine.offer()
        if rate_bytes_per_s != self._lent:
            self._lent = rate_bytes_per_s
            self._shares.limit(rate_bytes_per_s)

    async def serve(
        self, connection: Connection, stream: YamuxStream, message: Reserve | Connect | WhereIs
    ) -> None:
        """Answer a request that came on a stream, and carry the circuit that it leads to."""
        peer, relayed = connection.peer, connection.relay is not None
        asked = Asked(peer, message, self._links.is_member(peer), relayed, _prefix(connection))
        answer, blame = self.machine.asked(asked, trio.current_time())
        if blame is not None:
            self._links.penalise(peer, blame.points, blame.reason)
        with suppress(NetworkError), trio.CancelScope() as scope:  # the asker has ended its stream
            self._requests[asked] = scope
            try:
                await self._serve(asked, stream, answer)
            finally:
                del self._requests[asked]
                self.machine.ended(asked)

    async def _serve(self, asked: Asked, stream: YamuxStream, answer: Status | Stop) -> None:
        match asked.message, answer:
            case Connect(target), Stop():
                await self._connect(asked, stream, PeerId(target), answer)
            case Reserve(), Status("ok"):
                async with closing(stream):
                    await send_message(stream, answer)
                    await self._hold(stream, asked.peer)
            case WhereIs(target), Status("ok"):
                found = self._links.direct(PeerId(target))
                await send_last(stream, Status("ok", "" if found is None else found.ip))
            case _, Status():
                await send_last(stream, answer)

    async def _connect(
        self, asked: Asked, stream: YamuxStream, target: PeerId, message: Stop
    ) -> None:
        """Ask the target, and if it agrees, pass bytes on between the two."""
        there = self._links.direct(target)
        if (far := await agreed(self._links, there, message)) is None:
            self.machine.refused["unreachable"] += 1
            await send_last(stream, Status("unreachable"))
            return
        asked.agreed = True
        async with closing(far), closing(stream):
            await send_message(stream, Status("ok"))
            near, other = asked.prefix or asked.peer, _prefix(there) or target
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._carry, nursery, stream, far, (asked.peer, near))
                nursery.start_soon(self._carry, nursery, far, stream, (target, other))

    async def _hold(self, stream: YamuxStream, peer: PeerId) -> None:
        """Wait until a reservation ends: with its stream, or some time after its holder was a
        member last."""
        while self._links.is_member(peer):
            with trio.move_on_after(REVIEW_S):
                await stream.receive_some(1)  # whatever comes, it is the end
                return

    async def _carry(
        self, nursery: trio.Nursery, source: YamuxStream, to: YamuxStream, sender: Sender
    ) -> None:
        """Pass on one direction; its end ends the circuit, and nothing else."""
        with suppress(NetworkError):  # of either link, which ends by itself
            try:
                await self._pass_on(source, to, sender)
            except trio.TooSlowError:
                self.machine.refused["stalled"] += 1
        nursery.cancel_scope.cancel()

    async def _pass_on(self, source: YamuxStream, to: YamuxStream, sender: Sender) -> None:
        """Pass on what one side sends until it sends no more, out of the share of ``sender``."""
        holding = Holding(self._room, trio.current_time())
        try:
            while data := await source.receive_held(MAX_PIECE_BYTES):
                await self._shares.turn(sender, len(data))
                await self._pace(len(data))
                await to.send_all([data], STALL_S)
                now = trio.current_time()
                source.release(holding.passed(len(data), source.trip_s, now))
                self.machine.passed_bytes += len(data)
        finally:
            holding.close()

    async def _tick(self) -> None:
        while True:
            for asked, scope in self._requests.items():
                if self.machine.is_over(asked, trio.current_time()):
                    scope.cancel()
            await trio.sleep(TICK_S)


def _prefix(connection: Connection | None) -> str:
    """Return what a link is judged together with; many volunteers on one machine are legitimate."""
    ip = "" if connection is None else connection.ip
    return "" if not ip or is_loopback(ip) else prefix_of(ip)
