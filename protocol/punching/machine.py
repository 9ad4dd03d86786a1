"""One attempt of two relayed peers to connect directly: both dial each other at the same moment.

A router lets in whom its home has just written to. So each side names the place where others see
one of its ports, and both connect from that port: TCP's simultaneous open (RFC 9293, 3.5). It
begins who dialled the circuit, over which the messages go.

| the one who begins is | on | it |
| --- | --- | --- |
| asked | Punch | measures the round trip, says PunchNow and waits for half of it |
| waiting | the time | dials |
| dialling | failure | waits for the other's PunchFailed |
| failed | PunchFailed | asks again, three times in all, each with a fresh round trip |

| the other is | on | it |
| --- | --- | --- |
| idle | Punch | answers with its own place |
| asked | PunchNow | dials, as the side that begins Noise: "dialler" has no meaning here |
| dialling | failure | says PunchFailed, and is idle |

A router may show another port to each peer. Then its home names none, and dials; the other side
waits at its own place, where its router lets it in if that lets in anybody, or any port of a host
that was written to. If no port of either is known, nobody can dial.

A place is dialled only if the relay sees the peer at its host, and if that is public. State: where
the attempt stands. Pure; the clock is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

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

TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message to the other side."""

    message: Punch | PunchNow | PunchFailed | PunchRefused


@dataclass(frozen=True, slots=True)
class Meet:
    """Dial a place now, from our port whose outer place the other side knows, and wait there.

    Attributes:
        port: 0: nobody knows it, so only who comes counts.
        first: whether we begin Noise.
    """

    host: str
    port: int
    first: bool


@dataclass(frozen=True, slots=True)
class Over:
    """The attempt has ended without a connection."""

    reason: str


PunchEffect = Tell | Meet | Over
State = Literal["idle", "asked", "waiting", "dialling", "failed", "over"]


class Attempt:
    """See the module's docstring.

    Args:
        begins: whether we dialled the circuit.
        seen_at: the peer's host, as the relay says; empty: it says nothing.
        own: our port and where others see it; None: not known.
    """

    def __init__(self, *, begins: bool, seen_at: str, own: Outer | None) -> None:
        unfit = own is not None and 0 < own.port < FIRST_PORT
        self._begins, self._seen_at, self.own = begins, seen_at, None if unfit else own
        self.state: State = "idle"
        self.tries = 0
        self.round_trip_s = 0.0
        """As last measured over the circuit."""
        self._asked_at = 0.0
        self._due = 0.0
        self._place = ("", 0)

    @property
    def deadline(self) -> float:
        """When ``tick`` is due, in monotonic seconds; while dialling it is not."""
        return self._due

    def begin(self, now: float) -> list[PunchEffect]:
        """Ask the other side."""
        if self.own is None:
            return self._end("our own port is not known yet")
        self.tries += 1
        self.state, self._asked_at, self._due = "asked", now, now + LOST_S
        return [Tell(Punch(self.own.host, self.own.port))]

    def receive(self, message: RelayMessage, now: float) -> list[PunchEffect]:
        """Take a message of the other side.

        Raises:
            RemoteProtocolError: it has no place here.
        """
        match self._begins, self.state, message:
            case True, "asked", Punch():
                return self._on_answer(message, now)
            case True, ("asked" | "failed"), PunchRefused(code):
                return self._end(f"the other side refuses: {code}")
            case True, "failed", PunchFailed():
                return self._again(now)
            case False, "idle", Punch():
                return self._on_ask(message, now)
            case False, "asked", PunchNow():
                return self._dial(first=True)
        raise RemoteProtocolError("punch-unasked", type(message).__name__, penalty=20)

    def tick(self, now: float) -> list[PunchEffect]:
        """Go on when ``deadline`` has come."""
        if self.state in ("dialling", "over") or now < self._due:
            return []
        if self.state == "waiting":
            return self._dial(first=False)
        return self._end("no answer")

    def failed(self, now: float) -> list[PunchEffect]:
        """The dial has led to nothing."""
        self.state, self._due = ("failed" if self._begins else "idle"), now + LOST_S
        return [] if self._begins else [Tell(PunchFailed())]

    def _on_ask(self, message: Punch, now: float) -> list[PunchEffect]:
        self.tries += 1
        if self.tries > TRIES:
            raise RemoteProtocolError("punch-storm", f"{self.tries} tries", penalty=20)
        if self.own is None or not (self.own.port or message.port):
            return [Tell(PunchRefused("unmapped")), *self._end(_UNMAPPED)]
        if not self._is_its_own(message):
            return [Tell(PunchRefused("elsewhere")), *self._end(_ELSEWHERE)]
        self._place = message.host, message.port
        self.state, self._due = "asked", now + LOST_S
        return [Tell(Punch(self.own.host, self.own.port))]

    def _on_answer(self, message: Punch, now: float) -> list[PunchEffect]:
        if not self._is_its_own(message):
            return self._end(_ELSEWHERE)
        if self.own is None or not (self.own.port or message.port):
            return self._end(_UNMAPPED)
        self.round_trip_s = now - self._asked_at
        if self.round_trip_s > HEARD_S:  # nothing can be timed
            return self._end("the circuit is too slow")
        self._place = message.host, message.port
        self.state, self._due = "waiting", now + self.round_trip_s / 2
        return [Tell(PunchNow())]

    def _again(self, now: float) -> list[PunchEffect]:
        return self.begin(now) if self.tries < TRIES else self._end(f"{TRIES} tries failed")

    def _dial(self, *, first: bool) -> list[PunchEffect]:
        self.state = "dialling"
        return [Meet(*self._place, first)]

    def _is_its_own(self, message: Punch) -> bool:
        """Whether a place is the peer's, and not that of somebody whom we shall disturb; one in our
        own home is none that a router lets us dial."""
        own = self.own.host if self.own is not None else ""
        return message.host == self._seen_at != own and is_global(message.host)

    def _end(self, reason: str) -> list[PunchEffect]:
        self.state = "over"
        return [Over(reason)]


_UNMAPPED: Final = "no port is known at which one of us could be dialled"
_ELSEWHERE: Final = "the place is not where the relay sees the peer, not public, or in our own home"
