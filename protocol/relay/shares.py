"""Sharing a relay's rate among those who send: fair queueing before one token bucket.

Identities cost nothing, so addresses share: the members of one prefix divide what that gets, and a
member without one is by itself. How many circuits they have does not count, and while only one
wants to send, it gets the whole rate: so no further limit of a member or of a circuit is needed.
Pieces are served by start tags (Goyal, Vin and Cheng, "Start-time fair queueing", 1996,
section 2): unlike round-robin with deficits, this is fair to one that has only one small piece
waiting at a time.

State: the pieces that wait, and the tags; the tokens. The clock is passed in.
"""

import math
from heapq import heapify, heappop, heappush
from typing import Final

MAX_PIECE_BYTES: Final = 64 * 1024
BURST_S: Final = 0.1
"""Seconds of the rate that may be sent at once."""


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
        self._waiting: list[tuple[float, int, int]] = []
        """A heap of pieces: start tag (the bytes that its sender has had before), ticket, bytes."""
        self._had: dict[str, float] = {}
        """Bytes that each sender has had once its pieces are sent, where that is more than
        ``_virtual``."""
        self._virtual = 0.0
        """Start tag of the piece that was granted last."""

    def set_rate(self, rate_bytes_per_s: float, now: float) -> None:
        """Change the rate; 0: no limit."""
        self._earn(now)
        self._rate = rate_bytes_per_s
        self._tokens = min(self._tokens, self._burst_bytes)

    def ask(self, sender: str, size_bytes: int) -> int:
        """Let a piece wait for its turn; return its ticket.

        Args:
            sender: the prefix of who sends it, or another name for who is judged alone.
            size_bytes: at most ``MAX_PIECE_BYTES``.
        """
        self._last_ticket += 1
        start = max(self._virtual, self._had.get(sender, 0.0))
        heappush(self._waiting, (start, self._last_ticket, size_bytes))
        self._had[sender] = start + size_bytes
        return self._last_ticket

    def withdraw(self, ticket: int) -> None:
        """Forget a piece whose circuit has ended; its sender has had its bytes."""
        self._waiting = [piece for piece in self._waiting if piece[1] != ticket]
        heapify(self._waiting)

    def granted(self, now: float) -> list[int]:
        """Return the tickets whose pieces may be sent now, in order."""
        self._earn(now)
        found = []
        while self._waiting and self._has_tokens:
            self._virtual, ticket, size_bytes = heappop(self._waiting)
            self._tokens -= size_bytes
            found.append(ticket)
        if found:
            self._had = {one: had for one, had in self._had.items() if had > self._virtual}
        return found

    def next_deadline(self) -> float | None:
        """Return when ``granted`` has more to give; None: nothing waits."""
        if not self._waiting:
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
