"""Dialling one peer at all of its addresses (Happy Eyeballs, RFC 8305).

The addresses are tried one after the other, each with a head start of 250 ms before the next one
begins; an attempt that fails lets the next begin at once. So an address that swallows packets, as
broken IPv6 does, costs 250 ms and no more. A way through a relay comes last and takes as many round
trips, over a longer line. So it wins only where the direct ones do not work or have lost a packet;
then a direct connection takes over later.
The attempt in which the peer proves its identity first wins, at the moment before the peer learns
ours; the others end then. So a peer never sees two connections of ours, which would replace each
other.

State of a race: the attempts under way, and whether one has won.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain, zip_longest
from typing import Final, TypeVar

import trio

from client.net.addresses import Destination
from client.net.errors import DialError, HandshakeFailed, NotCalled, TurnedAway
from protocol.hosts import is_global, machine_of, number_of

HEAD_START_S: Final = 0.25
"""Connection Attempt Delay (RFC 8305, section 5)."""
T = TypeVar("T")


class Race:
    """One dial at several addresses."""

    def __init__(self) -> None:
        self.won = False
        self.answered = False
        """Whether the winner has become a connection."""
        self.failures: list[str] = []
        """What became of the attempts that failed, each in words with its address."""
        self.turned_away = False
        """Whether somebody was there, and has turned us away."""
        self._running: set[Attempt] = set()

    def attempt(self) -> Attempt:
        """Begin an attempt."""
        attempt = Attempt(self)
        self._running.add(attempt)
        return attempt

    def claim(self, winner: Attempt) -> None:
        """Let an attempt win, unless another one has.

        Raises:
            HandshakeFailed: another one has.
        """
        if self.won:
            raise HandshakeFailed("another address was faster")
        self.won = True
        for attempt in self._running - {winner}:
            attempt.scope.cancel()
        for attempt in self._running:
            attempt.over.set()

    def error(self) -> DialError:
        """Return why no attempt has become a connection."""
        if self.failures:
            kind = TurnedAway if self.turned_away else DialError
            return kind("; ".join(self.failures))
        return NotCalled("none of its addresses is called now")


class Attempt:
    """One address of a race; made by `Race.attempt`."""

    def __init__(self, race: Race) -> None:
        self._race = race
        self.scope = trio.CancelScope()
        self.over = trio.Event()
        """Set once it has failed, or one has won."""

    def claim(self) -> None:
        """Win, if nobody has. See `Race.claim`."""
        self._race.claim(self)

    def answered(self) -> None:
        """Note that the winner has become a connection."""
        self._race.answered = True

    def fail(self, words: str, *, turned_away: bool = False) -> None:
        """Give up; ``turned_away``: somebody is there, but closed the connection."""
        self._race.failures.append(words)
        self._race.turned_away |= turned_away
        self.over.set()

    async def head_start(self) -> None:
        """Wait until the next attempt may begin."""
        with trio.move_on_after(HEAD_START_S):
            await self.over.wait()


def in_order(targets: Iterable[Destination], own: Collection[str]) -> list[Destination]:
    """Return a peer's addresses in the order in which they are tried.

    Private ones come first where the peer is in our own home: where it has no other addresses, or
    one of them, or its IPv6 network, is ours too. Elsewhere they come last, for they are somebody
    else's there. Public ones take turns by kind, IPv6 first (RFC 8305, section 4).

    Args:
        targets: the addresses; hosts may be names.
        own: hosts at which we are reached, numbers.
    """
    targets = list(dict.fromkeys(targets))
    near = [target for target in targets if not _is_public(target.host)]
    far = [target for target in targets if _is_public(target.host)]
    six = [target for target in far if target.kind in ("ip6", "dns6")]
    four = [target for target in far if target not in six]
    turns = _in_turns(six, four)
    ours = {machine_of(host) for host in own if is_global(host)}
    together = any(number_of(t.host) and machine_of(t.host) in ours for t in far)
    return near + turns if together or not far else turns + near


def _is_public(host: str) -> bool:
    return number_of(host) is None or is_global(host)


def _in_turns(first: list[T], second: list[T]) -> list[T]:
    turns = chain.from_iterable(zip_longest(first, second))
    return [item for item in turns if item is not None]
