"""Hole punching over streams of relayed connections.

Who dialled a circuit tries to replace it by a direct connection as soon as the peer is admitted,
and again after growing pauses. The direct connection takes over in the midst of the link, as any
that was announced does (``links.py``). State: our own place, the budgets, what is under way.
"""

from collections import Counter
from functools import partial
from typing import Final, Protocol

import trio

from client.net.addresses import Destination
from client.net.errors import DialError, StreamReset
from client.net.handshake import request_protocol
from client.net.host import Connection
from client.net.punching_attempt import Attempt, AttemptFailed
from client.net.relay.exchange import (
    FAILURES,
    RELAY_PROTOCOL,
    Links,
    answer_to,
    negotiable,
    receive_message,
    send_last,
    send_message,
)
from client.net.yamux import YamuxStream
from protocol.errors import RemoteProtocolError
from protocol.hosts import Outer, kind_of
from protocol.ids import PeerId
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
            await send_last(stream, PunchRefused("busy"))
            return
        self._serving += 1
        try:
            async with lock:
                await self._attempt(connection, stream).answer(message)
        except AttemptFailed as failure:
            self.refused[str(failure)] += 1
            stream.send_eof()
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
                await self._attempt(connection, stream).begin()
            except AttemptFailed as failure:
                self.refused[str(failure)] += 1
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
        answer = await answer_to(self._links, relay, WhereIs(connection.peer))
        if isinstance(answer, Status):
            connection.host_by_relay = answer.host

    def _attempt(self, connection: Connection, stream: YamuxStream) -> Attempt:
        seen_at = connection.host_by_relay
        same_kind = (one for one in self.own if kind_of(one.host) == kind_of(seen_at))
        say, hear = partial(send_message, stream), partial(receive_message, stream)
        meet = partial(self._meet, connection.peer)
        return Attempt(say, hear, meet, seen_at, next(same_kind, None))

    async def _meet(self, peer: PeerId, own_port: int, host: str, port: int, first: bool) -> bool:
        """Dial a peer that dials us, if that is allowed; return whether we have met."""
        if not self._budgets.tries(peer, host, trio.current_time()):
            self.refused["too-often"] += 1
            raise StreamReset("too many tries")
        try:
            await self._links.meet(
                Destination(kind_of(host), host, port, peer), own_port, first=first
            )
        except DialError:
            self.refused["missed"] += 1
            return False
        return True
