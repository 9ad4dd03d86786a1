"""Sharing a relay's rate among its clients: fair queueing before one token bucket.

Who sends counts, however many circuits it has: members that want to send get the same bytes. A
circuit lets one piece wait at a time, and a member's pieces are sent in order: so its circuits take
turns. Identities cost nothing, so addresses share first: the
members of one prefix divide what that gets. While only one wants to send, it gets the whole rate,
so no further limit of a member or of a circuit is needed. Pieces are served by start tags (Goyal,
Vin and Cheng, "Start-time fair queueing", 1996, section 2), of prefixes and within each of members:
unlike round-robin with deficits, this is fair to a member that has only one small piece waiting at
a time.

State: the pieces that wait, by prefix and member, and the tags; the tokens. The clock is
passed in. A withdrawn piece costs nothing.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from protocol.ids import PeerId

Key = TypeVar("Key")
MAX_PIECE_BYTES: Final = 64 * 1024
BURST_S: Final = 0.1
"""Seconds of the rate that may be sent at once."""


class _Turns(Generic[Key]):
    """Who of several is next, by start tags: the bytes that each has had by then."""

    def __init__(self) -> None:
        self._virtual = 0.0  # start tag of the piece granted last
        self._starts: dict[Key, float] = {}
        """Of those that wait: the tag of the next piece."""
        self._finished: dict[Key, float] = {}
        """End of each one's last piece, where that lies in the future of ``_virtual``."""

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._starts)

    def begin(self, key: Key) -> None:
        """One waits from now on, or did already."""
        self._starts.setdefault(key, max(self._virtual, self._finished.get(key, 0.0)))

    def end(self, key: Key) -> None:
        """One waits no more; when nobody does, all begin anew."""
        del self._starts[key]
        if not self._starts:
            self._virtual = max(self._finished.values(), default=self._virtual)
            self._finished.clear()

    def first(self) -> Key:
        """Return the one whose turn it is."""
        return min(self._starts, key=self._starts.__getitem__)

    def charge(self, key: Key, size_bytes: int) -> None:
        """Count a piece of the one whose turn it was."""
        self._virtual = self._starts[key]
        self._starts[key] += size_bytes
        self._finished[key] = self._starts[key]
        self._finished = {one: at for one, at in self._finished.items() if at > self._virtual}

    def remembers(self, key: Key) -> bool:
        """Whether it makes a difference to forget one."""
        return key in self._starts or key in self._finished


@dataclass(slots=True)
class _Prefix:
    """What waits of one prefix: whose turn it is there, and pieces, ticket and bytes, by member."""

    turns: _Turns[PeerId] = field(default_factory=_Turns)
    members: dict[PeerId, deque[tuple[int, int]]] = field(default_factory=dict)


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
        self._turns: _Turns[str] = _Turns()
        self._prefixes: dict[str, _Prefix] = {}

    def set_rate(self, rate_bytes_per_s: float, now: float) -> None:
        """Change the rate; 0: no limit."""
        self._earn(now)
        self._rate = rate_bytes_per_s
        self._tokens = min(self._tokens, self._burst_bytes)

    def ask(self, member: PeerId, size_bytes: int, prefix: str = "") -> int:
        """Let a piece wait for its turn; return its ticket.

        Args:
            member: who sends it.
            size_bytes: at most ``MAX_PIECE_BYTES``.
            prefix: the sender's address, as far as it shares with others; empty: by itself.
        """
        self._last_ticket += 1
        key = prefix or member
        near = self._prefixes.setdefault(key, _Prefix())
        self._turns.begin(key)
        near.turns.begin(member)
        near.members.setdefault(member, deque()).append((self._last_ticket, size_bytes))
        return self._last_ticket

    def withdraw(self, ticket: int) -> None:
        """Forget a piece whose circuit has ended."""
        for key, near in list(self._prefixes.items()):
            for member, pieces in list(near.members.items()):
                kept = deque(piece for piece in pieces if piece[0] != ticket)
                if len(kept) != len(pieces):
                    near.members[member] = kept
                    self._tidy(key, member)

    def granted(self, now: float) -> list[int]:
        """Return the tickets whose pieces may be sent now, in order."""
        self._earn(now)
        found = []
        while self._turns and self._has_tokens:
            key = self._turns.first()
            near = self._prefixes[key]
            member = near.turns.first()
            ticket, size_bytes = near.members[member].popleft()
            self._turns.charge(key, size_bytes)
            near.turns.charge(member, size_bytes)
            self._tokens -= size_bytes
            self._tidy(key, member)
            found.append(ticket)
        return found

    def next_deadline(self) -> float | None:
        """Return when ``granted`` has more to give; None: nothing waits."""
        if not self._turns:
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

    def _tidy(self, key: str, member: PeerId) -> None:
        """Drop what waits no more, and prefixes whose tags have no effect any more."""
        near = self._prefixes[key]
        if not near.members[member]:
            del near.members[member]
            near.turns.end(member)
        if not near.members:
            self._turns.end(key)
        for one in [one for one in self._prefixes if not self._turns.remembers(one)]:
            del self._prefixes[one]
