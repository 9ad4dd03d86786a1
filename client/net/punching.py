"""Hole punching: two relayed peers dial each other at the same moment, over TCP.

Who dialled a circuit tries to replace it by a direct connection as soon as the peer is admitted,
and again after growing pauses. The direct connection takes over in the midst of the link, as any
that was announced does (``links.py``).

A router lets in whom its home has just written to. So each side names the place where others see
one of its ports, and both connect from that port: TCP's simultaneous open (RFC 9293, 3.5). Of each
try the round trip of two `Punch` is measured; `PunchNow` and half of that is the moment. Who dials
at its arrival begins Noise: "dialler" has no meaning here.

A router may show another port to each peer; then nobody can dial the one that its home names. But
that home dials, too, and the other side waits at its own place: its router lets the dial in if it
lets in anybody, or any port of a host that was written to.

State: our own place, the budgets, what is under way.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Literal, TypeVar

import trio

from client.net.addresses import Destination
from client.net.errors import DialError, StreamReset
from client.net.handshake import request_protocol
from client.net.host import Connection
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
from protocol.hosts import Outer, is_global, kind_of
from protocol.ids import PeerId
from protocol.pace import HEARD_S, LOST_S
from protocol.reachability.budgets import Budgets
from protocol.relay.messages import (
    FIRST_PORT,
    Punch,
    PunchFailed,
    PunchNow,
    PunchRefused,
    RelayMessage,
    Status,
    WhereIs,
)

M = TypeVar("M", bound=RelayMessage)

AGAIN_FIRST_S: Final = 2.0
"""Pause after an attempt that has failed: at first often only our own place is not known yet."""
AGAIN_MOST_S: Final = 600.0
OPEN_S: Final = 8.0
"""Longest wait for a stream to the peer."""
MOST: Final = 16
"""Attempts of others under way."""
TRIES: Final = 3
_WHY: Final = {
    "unmapped": "our own port is not known yet",
    "elsewhere": "the place is not where the relay sees the peer, not public, or in our own home",
}


class AttemptFailed(Exception):
    """The attempt has ended without a connection; says why."""


class Attempt:
    """One attempt over a circuit, of which the side that dialled the circuit begins each try.

    Args:
        say: sends the other side a message over the circuit.
        hear: waits for a message of the other side.
        meet: dials a host and port now from our own port, whose outer place the other side knows,
            and waits there; returns whether we have met. The last argument is whether we begin
            Noise.
        seen_at: the peer's host, as the relay says; empty: it says nothing.
        own: our port and where others see it; None: not known.
    """

    def __init__(
        self,
        say: Callable[[RelayMessage], Awaitable[None]],
        hear: Callable[[], Awaitable[RelayMessage]],
        meet: Callable[[int, str, int, bool], Awaitable[bool]],
        seen_at: str,
        own: Outer | None,
    ) -> None:
        self._say, self._hear_any, self._meet = say, hear, meet
        self._seen_at = seen_at
        self._own = own if own is not None and own.port >= FIRST_PORT else None

    async def begin(self) -> None:
        """Try to meet the other side, as the one that dialled the circuit.

        Raises:
            AttemptFailed: we have not met.
            RemoteProtocolError: the other side said what has no place here.
        """
        own = self._own
        if own is None:
            raise AttemptFailed(_WHY["unmapped"])
        for _ in range(TRIES):
            asked_at = trio.current_time()
            await self._say(Punch(own.host, own.port))
            place = await self._hear(Punch)
            trip_s = trio.current_time() - asked_at
            if code := self._objection(place):
                raise AttemptFailed(_WHY[code])
            if trip_s > HEARD_S:
                raise AttemptFailed("the circuit is too slow")  # nothing can be timed
            await self._say(PunchNow())
            await trio.sleep(trip_s / 2)
            if await self._meet(own.own_port, place.host, place.port, False):
                return
            await self._hear(PunchFailed)
        raise AttemptFailed(f"{TRIES} tries failed")

    async def answer(self, place: Punch) -> None:
        """Take part in the attempt of the other side, which has named its place. See `begin`."""
        for _ in range(TRIES):
            own = self._own
            if (code := self._objection(place)) or own is None:
                await self._say(PunchRefused(code or "unmapped"))
                raise AttemptFailed(_WHY[code or "unmapped"])
            await self._say(Punch(own.host, own.port))
            await self._hear(PunchNow)
            if await self._meet(own.own_port, place.host, place.port, True):
                return
            await self._say(PunchFailed())
            place = await self._hear(Punch)
        raise RemoteProtocolError("punch-storm", f"{TRIES + 1} tries", penalty=20)

    async def _hear(self, kind: type[M]) -> M:
        with trio.move_on_after(LOST_S):
            message = await self._hear_any()
            if isinstance(message, kind):
                return message
            if isinstance(message, PunchRefused):
                raise AttemptFailed(f"the other side refuses: {message.code}")
            raise RemoteProtocolError("punch-unasked", type(message).__name__, penalty=20)
        raise AttemptFailed("no answer")

    def _objection(self, place: Punch) -> Literal["", "unmapped", "elsewhere"]:
        """Return why a place is not dialled; empty: it is. It has to be the peer's own, and not
        that of somebody whom we shall disturb; one in our own home is none that a router lets us
        dial."""
        own = self._own
        if own is None:
            return "unmapped"
        is_its_own = place.host == self._seen_at != own.host and is_global(place.host)
        return "" if is_its_own else "elsewhere"


class Punching:
    """See the module's docstring.

    Attributes:
        refused: attempts that led to nothing, by reason; those of both sides.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        self._budgets = Budgets()
        self._serving = 0
        self._own: Sequence[Outer] = ()
        self._known = trio.Event()
        self.refused: Counter[str] = Counter()

    def seen_at(self, own: Sequence[Outer]) -> None:
        """Note our ports that everybody sees at one place, one for each kind of host."""
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
        if not self._links.admission(peer).is_set() or lock.locked() or self._serving >= MOST:
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
        await self._links.admission(connection.peer).wait()
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
        same_kind = (one for one in self._own if kind_of(one.host) == kind_of(seen_at))
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
