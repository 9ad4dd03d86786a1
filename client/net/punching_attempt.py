"""One attempt of two relayed peers to connect directly: both dial each other at the same moment.

A router lets in whom its home has just written to. So each side names the place where others see
one of its ports, and both connect from that port: TCP's simultaneous open (RFC 9293, 3.5). It
begins who dialled the circuit, over which the messages go: its `Punch` is answered with another
one, which measures the round trip; it says `PunchNow`, waits for half of that, and dials. The other
side dials when that arrives, as the side that begins Noise: "dialler" has no meaning here. Three
tries are made, each with a fresh round trip.

A router may show another port to each peer. Then its home names none, and dials; the other side
waits at its own place, where its router lets it in if that lets in anybody, or any port of a host
that was written to. If no port of either is known, nobody can dial.

A place is dialled only if the relay sees the peer at its host, and if that is public. No state
beyond the attempt.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Literal, TypeVar

import trio

from protocol.errors import RemoteProtocolError
from protocol.hosts import Outer, is_global
from protocol.pace import HEARD_S, LOST_S
from protocol.relay.messages import (
    FIRST_PORT,
    Punch,
    PunchFailed,
    PunchNow,
    PunchRefused,
    RelayMessage,
)

M = TypeVar("M", bound=RelayMessage)

TRIES: Final = 3
_WHY: Final = {
    "unmapped": "no port is known at which one of us could be dialled",
    "elsewhere": "the place is not where the relay sees the peer, not public, or in our own home",
}


class AttemptFailed(Exception):
    """The attempt has ended without a connection; says why."""


class Attempt:
    """See the module's docstring.

    Args:
        say: sends the other side a message over the circuit.
        hear: waits for a message of the other side.
        meet: dials a host and port now from our own port, whose outer place the other side knows,
            and waits there; returns whether we have met. Of port 0, only who comes counts. The
            last argument is whether we begin Noise.
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
        unfit = own is not None and 0 < own.port < FIRST_PORT
        self._say, self._hear_any, self._meet = say, hear, meet
        self._seen_at, self._own = seen_at, None if unfit else own

    async def begin(self) -> None:
        """Try to meet the other side, as the one that dialled the circuit.

        Raises:
            AttemptFailed: we have not met.
            RemoteProtocolError: the other side said what has no place here.
        """
        own = self._own
        if own is None:
            raise AttemptFailed("our own port is not known yet")
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
        if own is None or not (own.port or place.port):
            return "unmapped"
        is_its_own = place.host == self._seen_at != own.host and is_global(place.host)
        return "" if is_its_own else "elsewhere"
