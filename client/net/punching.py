"""Hole punching: the driver of ``protocol/punching``, over streams of relayed connections.

Who dialled a circuit tries to replace it by a direct connection as soon as the peer is admitted,
and again after growing pauses. The direct connection takes over in the midst of the link, as any
that was announced does (``links.py``). State: our own place, the budgets, what is under way.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol

import trio

from client.net.addresses import Destination
from client.net.errors import DialError, StreamReset
from client.net.handshake import request_protocol
from client.net.host import Connection
from client.net.relay.exchange import (
    FAILURES,
    RELAY_PROTOCOL,
    Links,
    ask,
    negotiable,
    receive_message,
    send_message,
)
from client.net.yamux_stream import YamuxStream
from protocol.errors import RemoteProtocolError
from protocol.hosts import Outer, kind_of
from protocol.ids import PeerId
from protocol.punching.machine import Attempt, Meet, Over, PunchEffect, Tell
from protocol.reachability.budgets import Budgets
from protocol.relay.messages import Punch, PunchRefused, Status, WhereIs

AGAIN_FIRST_S: Final = 2.0
"""Pause after an attempt that has failed: at first often only our own place is not known yet."""
AGAIN_MOST_S: Final = 600.0
OPEN_S: Final = 8.0
"""Longest wait for a stream to the peer."""
MOST: Final = 16
"""Attempts of others under way."""


class Meeting(Links, Protocol):
    """The part of the network that punching uses."""

    async def wait_admitted(self, peer: PeerId) -> None:
        """Wait until a peer that is linked is admitted."""

    def is_admitted(self, peer: PeerId) -> bool:
        """Whether a linked peer is admitted."""

    def dialling(self, peer: PeerId) -> trio.Lock:
        """Return what is held while a peer is dialled."""

    async def meet(self, target: Destination, own_port: int, *, first: bool) -> None:
        """Dial a peer that dials us, and let the link move; raises DialError."""


class Punching:
    """See the module's docstring.

    Attributes:
        refused: attempts that led to nothing, by reason; those of both sides.
    """

    def __init__(self, links: Meeting) -> None:
        self._links = links
        self._budgets = Budgets()
        self._serving = 0
        self._own: tuple[Outer, ...] = ()
        self._known = trio.Event()
        self.refused: Counter[str] = Counter()

    @property
    def own(self) -> tuple[Outer, ...]:
        """Our ports that everybody sees at one place, one for each kind of host."""
        return self._own

    @own.setter
    def own(self, own: tuple[Outer, ...]) -> None:
        self._own = own
        if own:
            self._known.set()
        elif self._known.is_set():
            self._known = trio.Event()

    async def replace(self, connection: Connection) -> None:
        """Try to replace a relayed connection that we dialled, until it has ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_trying, connection)
            await connection.ended.wait()
            nursery.cancel_scope.cancel()

    async def serve(self, connection: Connection, stream: YamuxStream, message: Punch) -> None:
        """Take part in the attempt of a peer."""
        peer, lock = connection.peer, self._links.dialling(connection.peer)
        if connection.relay is None or connection.dialled:
            raise RemoteProtocolError("punch-unasked", penalty=20)
        if not self._links.is_admitted(peer) or lock.locked() or self._serving >= MOST:
            self.refused["busy"] += 1
            await send_message(stream, PunchRefused("busy"))
            stream.send_eof()
            return
        self._serving += 1
        try:
            async with lock:
                attempt = self._attempt(connection, begins=False)
                effects = attempt.receive(message, trio.current_time())
                await self._carry_out(attempt, connection, stream, effects)
        finally:
            self._serving -= 1

    async def _keep_trying(self, connection: Connection) -> None:
        await self._links.wait_admitted(connection.peer)
        pause_s = AGAIN_FIRST_S
        while True:
            await self._known.wait()
            await self._begin(connection)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_MOST_S)

    async def _begin(self, connection: Connection) -> None:
        async with self._links.dialling(connection.peer):
            if self._links.direct(connection.peer) is not None:
                return
            await self._ask_relay(connection)
            try:
                stream = await connection.session.open_stream()
            except FAILURES:
                return
            try:
                with trio.fail_after(OPEN_S):
                    await request_protocol(negotiable(stream), RELAY_PROTOCOL)
                attempt = self._attempt(connection, begins=True)
                effects = attempt.begin(trio.current_time())
                await self._carry_out(attempt, connection, stream, effects)
            except RemoteProtocolError as error:
                self._links.penalise(connection.peer, error.penalty, error.reason)
            except FAILURES:
                self.refused["interrupted"] += 1
            finally:
                stream.reset()

    async def _ask_relay(self, connection: Connection) -> None:
        """Ask the relay where it sees the peer, if it has not said so: when we asked for the
        circuit, it may not have known yet that we are a member."""
        relay = None if connection.relay is None else self._links.direct(connection.relay)
        if connection.host_by_relay or relay is None:
            return
        try:
            stream, answer = await ask(relay, WhereIs(connection.peer))
        except FAILURES:
            return
        if isinstance(answer, Status):
            connection.host_by_relay = answer.host
        stream.reset()

    def _attempt(self, connection: Connection, *, begins: bool) -> Attempt:
        seen_at = connection.host_by_relay
        same_kind = (one for one in self.own if kind_of(one.host) == kind_of(seen_at))
        return Attempt(begins=begins, seen_at=seen_at, own=next(same_kind, None))

    async def _carry_out(
        self,
        attempt: Attempt,
        connection: Connection,
        stream: YamuxStream,
        effects: list[PunchEffect],
    ) -> None:
        """Do what the machine says until the attempt is over."""
        own = attempt.own
        while True:
            following: list[PunchEffect] = []
            for effect in effects:
                match effect:
                    case Tell(message):
                        await send_message(stream, message)
                    case Over(reason):
                        self.refused[reason] += 1
                        stream.send_eof()
                        return
                    case Meet() if own is not None:
                        if await self._meet(effect, connection, own):
                            return
                        following = attempt.failed(trio.current_time())
            effects = following or await self._next(attempt, stream)

    async def _next(self, attempt: Attempt, stream: YamuxStream) -> list[PunchEffect]:
        """Wait for a message, or for the moment that the machine waits for."""
        if attempt.state == "waiting":
            await trio.sleep_until(attempt.deadline)
            return attempt.tick(trio.current_time())
        with trio.move_on_at(attempt.deadline) as patience:
            message = await receive_message(stream)
        if patience.cancelled_caught:
            return attempt.tick(trio.current_time())
        return attempt.receive(message, trio.current_time())

    async def _meet(self, effect: Meet, connection: Connection, own: Outer) -> bool:
        """Dial, if that is allowed; return whether we have met."""
        peer = connection.peer
        if not self._budgets.tries(peer, effect.host, trio.current_time()):
            self.refused["too-often"] += 1
            raise StreamReset("too many tries")
        target = Destination(kind_of(effect.host), effect.host, effect.port, peer)
        try:
            await self._links.meet(target, own.own_port, first=effect.first)
        except DialError:
            self.refused["missed"] += 1
            return False
        return True
