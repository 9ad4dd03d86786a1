"""Sharing a relay's rate among its clients: fair queueing before one token bucket.

Who sends counts, however many circuits it has: a member's circuits take turns within its share, and
members that want to send get the same bytes. While only one wants to send, it gets the whole rate,
so no further limit of a member or of a circuit is needed. Pieces are served by start tags (Goyal,
Vin and Cheng, "Start-time fair queueing", 1996, section 2): unlike round-robin with deficits, this
is fair to a member that has only one small piece waiting at a time.

State: of each member the pieces that wait, by circuit, and its tag; the tokens. The clock is passed
in. A withdrawn piece costs nothing.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from protocol.ids import PeerId

MAX_PIECE_BYTES: Final = 64 * 1024
BURST_S: Final = 0.1
"""Seconds of the rate that may be sent at once."""


@dataclass(slots=True)
class _Waiting:
    """A member's pieces: ticket and bytes, by circuit; the circuit in front is next."""

    start: float
    """Start tag of the next piece: the bytes that each member has had by then."""
    pieces: OrderedDict[Hashable, deque[tuple[int, int]]] = field(default_factory=OrderedDict)


class Shares:
    """See the module's docstring.

    Args:
        rate_bytes_per_s: of all circuits together; 0: no limit.
        now: monotonic seconds.
    """

    def __init__(self, rate_bytes_per_s: float, now: float) -> None:
        self._rate, self._at = rate_bytes_per_s, now
        self._tokens = self._burst_bytes
        self._last_ticket = 0
        self._virtual = 0.0  # start tag of the piece granted last
        self._finished: dict[PeerId, float] = {}
        """End of each member's last piece, where that lies in the future of ``_virtual``."""
        self._members: dict[PeerId, _Waiting] = {}

    def set_rate(self, rate_bytes_per_s: float, now: float) -> None:
        """Change the rate; 0: no limit."""
        self._earn(now)
        self._rate = rate_bytes_per_s
        self._tokens = min(self._tokens, self._burst_bytes)

    def ask(self, member: PeerId, circuit: Hashable, size_bytes: int) -> int:
        """Let a piece of at most ``MAX_PIECE_BYTES`` wait for its turn; return its ticket."""
        self._last_ticket += 1
        if member not in self._members:
            start = max(self._virtual, self._finished.get(member, 0.0))
            self._members[member] = _Waiting(start)
        pieces = self._members[member].pieces.setdefault(circuit, deque())
        pieces.append((self._last_ticket, size_bytes))
        return self._last_ticket

    def withdraw(self, ticket: int) -> None:
        """Forget a piece whose circuit has ended."""
        for member, waiting in list(self._members.items()):
            for circuit, pieces in list(waiting.pieces.items()):
                kept = deque(piece for piece in pieces if piece[0] != ticket)
                if len(kept) != len(pieces):
                    waiting.pieces[circuit] = kept
                    self._tidy(member, circuit)

    def granted(self, now: float) -> list[int]:
        """Return the tickets whose pieces may be sent now, in order."""
        self._earn(now)
        found = []
        while self._members and self._has_tokens:
            member = min(self._members, key=lambda one: self._members[one].start)
            waiting = self._members[member]
            circuit, pieces = next(iter(waiting.pieces.items()))
            ticket, size_bytes = pieces.popleft()
            waiting.pieces.move_to_end(circuit)
            self._virtual = waiting.start
            waiting.start += size_bytes
            self._finished[member] = waiting.start
            self._tokens -= size_bytes
            self._tidy(member, circuit)
            found.append(ticket)
        return found

    def next_deadline(self) -> float | None:
        """Return when ``granted`` has more to give; None: nothing waits."""
        if not self._members:
            return None
        return self._at if self._has_tokens else self._at - self._tokens / self._rate

    @property
    def _has_tokens(self) -> bool:
        return self._rate == 0 or self._tokens > -1  # a part of a byte is a rounding error

    @property
    def _burst_bytes(self) -> float:
        return max(MAX_PIECE_BYTES, BURST_S * self._rate) if self._rate else math.inf

    def _earn(self, now: float) -> None:
        earned = self._rate * max(0.0, now - self._at)
        self._at = max(now, self._at)
        self._tokens = min(self._burst_bytes, self._tokens + earned) if self._rate else 0.0

    def _tidy(self, member: PeerId, circuit: Hashable) -> None:
        """Drop what waits no more, and tags that have no effect any more."""
        waiting = self._members[member]
        if not waiting.pieces[circuit]:
            del waiting.pieces[circuit]
        if not waiting.pieces:
            del self._members[member]
        self._finished = {one: at for one, at in self._finished.items() if at > self._virtual}
