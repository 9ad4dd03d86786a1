"""Passing circuits on: the driver of ``RelayServer``.

Each request has a task, that of its stream; circuits end with it. What comes from one side is given
back to that side's window only once the other side's connection has taken it, so 256 KiB wait in
each direction (``Holding``), and a slow reader slows its sender down. The bytes of
circuits wait for the rate that the owner lends, and behind the tensors of our own training
(``pacing.py``).

State: the machine, the shares, and the streams of each request.
"""

from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

import trio
from msgspec.structs import replace

from client.net.errors import NetworkError
from client.net.host import Connection
from client.net.pacing import Pacing
from client.net.relay.exchange import Links, answered, send_message
from client.net.relay.reaching import REVIEW_S
from client.net.relay.shares import MAX_PIECE_BYTES, Sender, Shares
from client.net.yamux import YamuxStream
from protocol.hosts import is_loopback, prefix_of
from protocol.ids import PeerId
from protocol.pace import TICK_S
from protocol.relay.holding import Holding, Room
from protocol.relay.messages import Connect, Reserve, Status, Stop, WhereIs
from protocol.relay.server import Asked, RelayLimits, RelayServer

STALL_S: Final = 30.0
"""Seconds after which a side that takes nothing ends its circuit; data it takes earns time back."""


@dataclass(slots=True, eq=False)
class _Request:
    """One request and, if that leads to a circuit, its two streams."""

    number: int
    stream: YamuxStream
    scope: trio.CancelScope
    lasts: bool = False
    """Whether it led to a circuit or a reservation."""
    target: YamuxStream | None = None


class PassingOn:
    """See the module's docstring.

    Args:
        links: the links of this network.
        nursery: ends with the network.
        pacing: of all that we send.
    """

    def __init__(self, links: Links, nursery: trio.Nursery, pacing: Pacing) -> None:
        self._links, self._nursery = links, nursery
        self._pace = pacing.upload.lanes["background"]
        self._lent = 0.0
        self.machine = RelayServer(links.peer_id, RelayLimits())
        self._shares = Shares()
        self._room = Room()
        self._requests: dict[int, _Request] = {}
        self._numbers = count(1)
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
        with trio.CancelScope() as scope:
            request = _Request(next(self._numbers), stream, scope)
            self._requests[request.number] = request
            try:
                await self._serve(request, connection, message)
            except NetworkError:
                pass  # the asker has ended its stream
            finally:
                self._forget(request)

    async def _serve(
        self, request: _Request, connection: Connection, message: Reserve | Connect | WhereIs
    ) -> None:
        peer, number = connection.peer, request.number
        member, relayed = self._links.is_member(peer), connection.relay is not None
        asked = Asked(number, peer, message, member, relayed, _prefix(connection))
        answer, blame = self.machine.asked(asked, trio.current_time())
        if blame is not None:
            self._links.penalise(peer, blame.points, blame.reason)
        if isinstance(answer, Stop) and isinstance(message, Connect):
            ask_target = replace(answer, host=connection.ip)
            agrees = await self._ask_target(request, PeerId(message.target), ask_target)
            request.lasts = self.machine.agreed(number, agrees)
            answer = Status("ok" if request.lasts else "unreachable")
        is_member = self._links.is_member(peer)  # perhaps since it has asked
        if is_member and not isinstance(message, Reserve) and answer == Status("ok"):
            answer = Status("ok", self._host_of(PeerId(message.target)))
        await send_message(request.stream, answer)
        if isinstance(message, Reserve) and answer == Status("ok"):
            request.lasts = True
            await self._hold(request.stream, peer)
            return
        if not request.lasts or request.target is None or not isinstance(message, Connect):
            request.stream.send_eof()
            return
        target = PeerId(message.target)
        there, back = request.target, request.stream
        async with trio.open_nursery() as nursery:
            near, far = _prefix(connection), _prefix(self._links.direct(target))
            nursery.start_soon(self._carry, request, back, there, (peer, near or peer))
            nursery.start_soon(self._carry, request, there, back, (target, far or target))

    async def _hold(self, stream: YamuxStream, peer: PeerId) -> None:
        """Wait until a reservation ends: with its stream, or some time after its holder was a
        member last."""
        while self._links.is_member(peer):
            with trio.move_on_after(REVIEW_S):
                await stream.receive_some(1)  # whatever comes, it is the end
                return

    async def _ask_target(self, request: _Request, target: PeerId, message: Stop) -> bool:
        found = await answered(self._links, self._links.direct(target), message)
        if found is None:
            return False
        request.target, answer = found
        return isinstance(answer, Status) and answer.code == "ok"

    def _host_of(self, peer: PeerId) -> str:
        connection = self._links.direct(peer)
        return "" if connection is None else connection.ip

    async def _carry(
        self, request: _Request, source: YamuxStream, to: YamuxStream, sender: Sender
    ) -> None:
        """Pass on one direction; its end ends the circuit, and nothing else."""
        with suppress(NetworkError):  # of either link, which ends by itself
            try:
                await self._pass_on(source, to, sender)
            except trio.TooSlowError:
                self.machine.refused["stalled"] += 1
        request.scope.cancel()

    async def _pass_on(self, source: YamuxStream, to: YamuxStream, sender: Sender) -> None:
        """Pass on what one side sends until it sends no more.

        Args:
            source: read from.
            to: written to.
            sender: whose share the bytes come out of.
        """
        holding = Holding(self._room, trio.current_time())
        try:
            while data := await source.receive_held(MAX_PIECE_BYTES):
                await self._shares.turn(sender, len(data))
                await self._pace(len(data))
                await to.send_all([data], STALL_S)
                now = trio.current_time()
                source.release(len(data), holding.passed(len(data), source.trip_s, now))
                self.machine.passed_bytes += len(data)
        finally:
            holding.close()

    async def _tick(self) -> None:
        while True:
            for number in self.machine.tick(trio.current_time()):
                if (request := self._requests.get(number)) is not None:
                    request.scope.cancel()
            await trio.sleep(TICK_S)

    def _forget(self, request: _Request) -> None:
        del self._requests[request.number]
        if request.lasts and not request.stream.done:
            request.stream.reset()
        if request.target is not None and not request.target.done:
            request.target.reset()
        self.machine.ended(request.number)


def _prefix(connection: Connection | None) -> str:
    """Return what a link is judged together with; many volunteers on one machine are legitimate."""
    ip = "" if connection is None else connection.ip
    return "" if not ip or is_loopback(ip) else prefix_of(ip)
