"""Dialling one peer at all of its addresses (Happy Eyeballs, RFC 8305).

Each address has a head start of 250 ms before the next one is tried too; one that fails lets the
next begin at once. The attempt in which the peer proves its identity first wins, at the moment
before the peer learns ours; the others end then. So a peer never sees two connections of ours,
which would replace each other.

State of a race: the attempts under way, what became of others, and whether one has won.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from itertools import chain, zip_longest
from typing import Final

import trio

from client.net.addresses import Destination
from client.net.errors import (
    AddressError,
    DialError,
    HandshakeFailed,
    NetworkError,
    NotCalled,
    TurnedAway,
)
from protocol.hosts import is_global, machine_of, number_of

HEAD_START_S: Final = 0.25
"""Connection Attempt Delay (RFC 8305, section 5)."""


Attempt = Callable[[Destination, Callable[[], None]], Awaitable[None]]
"""Dials an address, and returns once the connection that came of it is over. It calls the function
when the peer has proved its identity and is about to learn ours."""


class Race:
    """One dial at several addresses."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._won = self._succeeded = False
        self._failures: list[NetworkError] = []
        self._scopes: list[trio.CancelScope] = []
        self._next = trio.Event()
        """Set when an attempt has failed, or one has won."""

    async def run(self, targets: Iterable[Destination]) -> None:
        """Try the addresses until one has become a connection, and that is over.

        Raises:
            NotCalled: no address may be called.
            TurnedAway: none has; somebody was there, and has turned us away.
            DialError: none has; names what became of each.
        """
        async with trio.open_nursery() as nursery:
            for target in targets:
                self._next = trio.Event()
                nursery.start_soon(self._try, target)
                with trio.move_on_after(HEAD_START_S):
                    await self._next.wait()
                if self._won:
                    break
        if self._succeeded:
            return
        if not self._failures:
            raise NotCalled("none of its addresses is called now")
        turned_away = any(isinstance(error, TurnedAway) for error in self._failures)
        kind = TurnedAway if turned_away else DialError
        raise kind("; ".join(map(str, self._failures)))

    async def _try(self, target: Destination) -> None:
        with trio.CancelScope() as scope:
            self._scopes.append(scope)
            try:
                await self._attempt(target, partial(self._claim, scope))
                self._succeeded = True
            except NotCalled:
                pass
            except (DialError, AddressError) as error:
                self._failures.append(error)
        self._next.set()

    def _claim(self, winner: trio.CancelScope) -> None:
        """Let an attempt win, unless another one has."""
        if self._won:
            raise HandshakeFailed("another address was faster")
        self._won = True
        for scope in self._scopes:
            if scope is not winner:
                scope.cancel()


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
    pairs = chain.from_iterable(zip_longest(six, four))
    turns = [target for target in pairs if target is not None]
    ours = {machine_of(host) for host in own if is_global(host)}
    together = any(number_of(t.host) and machine_of(t.host) in ours for t in far)
    return near + turns if together or not far else turns + near


def _is_public(host: str) -> bool:
    return number_of(host) is None or is_global(host)
