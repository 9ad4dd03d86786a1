"""Hole punching: two relayed peers dial each other at the same moment, over TCP.

Both ends of a circuit try to replace it by a direct connection as soon as the peer is admitted, and
again after growing pauses: by a usual dial, and who has dialled the circuit by punching. The direct
connection takes over in the midst of the link, as any that was announced does (``links.py``).

A router lets in whom its home has just written to. So each side names the place where others see
one of its ports, and both connect from that port: TCP's simultaneous open (RFC 9293, 3.5). A try is
one stream: the round trip of two `Punch` is measured; `PunchNow` and half of that is the moment.
Who dials at its arrival begins Noise: "dialler" has no meaning here.

A router may show another port to each peer; then nobody can dial the one that its home names. But
that home dials, too, and the other side waits at its own place: its router lets the dial in if it
lets in anybody, or any port of a host that was written to.

State: our own place, and the budgets.
"""

from collections import Counter
from typing import Final, Literal

import trio

from client.net.addresses import Destination
from client.net.errors import DialError, StreamReset
from client.net.host import Connection
from client.net.relay.exchange import (
    FAILURES,
    Links,
    answer_to,
    answered,
    receive_message,
    send_last,
    send_message,
)
from client.net.yamux import YamuxStream
from protocol.errors import RemoteProtocolError
from protocol.hosts import Outer, is_global, kind_of
from protocol.pace import HEARD_S, LOST_S
from protocol.reachability.budgets import Budgets
from protocol.relay.messages import FIRST_PORT, Punch, PunchNow, Status, WhereIs

AGAIN_FIRST_S: Final = 2.0
AGAIN_MOST_S: Final = 600.0
TRIES: Final = 3
BETWEEN_S: Final = 0.2
"""From one to the next: the other side may end later."""
Code = Literal["", "unmapped", "elsewhere", "busy"]
_WHY: Final = {
    "unmapped": "our own port is not known yet",
    "elsewhere": "the place is not where the relay sees the peer, not public, or in our own home",
    "busy": "busy",
}


class AttemptFailed(Exception):
    """There is no sense in another try now; says why."""


class Punching:
    """See the module's docstring."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._budgets = Budgets()
        self.own: tuple[Outer, ...] = ()
        """Our ports that everybody sees at one place, one for each kind of host."""
        self.refused: Counter[str] = Counter()
        """Attempts that led to nothing, by reason; those of both sides."""

    async def replace(self, connection: Connection) -> None:
        """Try to replace a relayed connection, until it has ended."""
        peer, pause_s = connection.peer, AGAIN_FIRST_S
        while not connection.ended.is_set():
            if self._links.is_admitted(peer):
                if self.own:
                    await self._ask_relay(connection)
                await self._links.dial_beside(peer)
                if self.own and connection.dialled:
                    await self._begin(connection)
            with trio.move_on_after(pause_s) as waiting:
                await self._links.change_of(peer).park()
            pause_s = min(2 * pause_s, AGAIN_MOST_S) if waiting.cancelled_caught else AGAIN_FIRST_S

    async def serve(self, connection: Connection, stream: YamuxStream, place: Punch) -> None:
        """Take part in the try of a peer, which has named its place."""
        if connection.relay is None or connection.dialled:
            raise RemoteProtocolError("punch-unasked", penalty=20)
        lock, own = self._links.dialling(connection.peer), self._own_seen_by(connection)
        code = self._objection(connection, place, own)
        if not self._links.is_admitted(connection.peer) or lock.locked():
            code = "busy"
        if code:
            self.refused[_WHY[code]] += 1
            await send_last(stream, Status(code))
            return
        assert own is not None, "or it were unmapped"
        try:
            async with lock:
                await send_message(stream, Punch(own.host, own.port))
                with trio.fail_after(LOST_S):
                    now = await receive_message(stream)
                if not isinstance(now, PunchNow):
                    raise RemoteProtocolError("punch-unasked", type(now).__name__, penalty=20)
                await self._meet(connection, own, place, first=True)
        finally:
            stream.reset()

    async def _begin(self, connection: Connection) -> None:
        async with self._links.dialling(connection.peer):
            if self._links.direct(connection.peer) is not None:
                return
            try:
                for _ in range(TRIES):
                    if await self._try(connection):
                        return
                    await trio.sleep(BETWEEN_S)
                raise AttemptFailed(f"{TRIES} tries failed")
            except AttemptFailed as failure:
                self.refused[str(failure)] += 1
            except FAILURES:
                self.refused["interrupted"] += 1

    async def _try(self, connection: Connection) -> bool:
        """Try to meet the peer; return whether we have met.

        Raises:
            AttemptFailed: it would be in vain.
            StreamReset, ConnectionLost: the circuit has ended, or this is one try too many.
        """
        if (own := self._own_seen_by(connection)) is None:
            raise AttemptFailed(_WHY["unmapped"])
        asked_at = trio.current_time()
        found = await answered(self._links, connection, Punch(own.host, own.port))
        trip_s = trio.current_time() - asked_at
        if found is None:
            raise AttemptFailed("no answer")
        stream, place = found
        try:
            if isinstance(place, Status):
                raise AttemptFailed(f"the other side refuses: {place.code}")
            if not isinstance(place, Punch):
                self._links.penalise(connection.peer, 20, "punch-unasked")
                raise AttemptFailed("no answer")
            if code := self._objection(connection, place, own):
                raise AttemptFailed(_WHY[code])
            if trip_s > HEARD_S:
                raise AttemptFailed("the circuit is too slow")  # nothing can be timed
            await send_last(stream, PunchNow())
            await trio.sleep(trip_s / 2)
            return await self._meet(connection, own, place, first=False)
        finally:
            stream.reset()

    async def _ask_relay(self, connection: Connection) -> None:
        """Ask the relay where it sees the peer, if it has not said so: it tells members alone."""
        relay = None if connection.relay is None else self._links.direct(connection.relay)
        if connection.host_by_relay or relay is None:
            return
        answer = await answer_to(self._links, relay, WhereIs(connection.peer))
        if isinstance(answer, Status):
            connection.host_by_relay = answer.host

    def _own_seen_by(self, connection: Connection) -> Outer | None:
        """Return our port that is of the peer's kind of host, and where others see it."""
        kind = kind_of(connection.host_by_relay)
        found = (one for one in self.own if kind_of(one.host) == kind and one.port >= FIRST_PORT)
        return next(found, None)

    def _objection(self, connection: Connection, place: Punch, own: Outer | None) -> Code:
        """Return why a place is not dialled; empty: it is. It has to be the peer's own, and not
        that of somebody whom we shall disturb; one in our own home is none that a router lets us
        dial."""
        if own is None:
            return "unmapped"
        is_its_own = place.host == connection.host_by_relay != own.host and is_global(place.host)
        return "" if is_its_own else "elsewhere"

    async def _meet(self, connection: Connection, own: Outer, place: Punch, *, first: bool) -> bool:
        """Dial a peer that dials us, if that is allowed; return whether we have met."""
        host, peer = place.host, connection.peer
        if not self._budgets.tries(peer, host, trio.current_time()):
            self.refused["too-often"] += 1
            raise StreamReset("too many tries")
        try:
            there = Destination(kind_of(host), host, place.port, peer)
            await self._links.meet(there, own.own_port, first=first)
        except DialError:
            self.refused["missed"] += 1
            return False
        return True
