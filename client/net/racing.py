"""Dialling one peer at all of its addresses (Happy Eyeballs, RFC 8305).

Each address has a head start of 250 ms before the next one is tried too; one that fails lets the
next begin at once. The attempt in which the peer proves its identity first wins, at the moment
before the peer learns ours; the others end then. So a peer never sees two connections of ours,
which would replace each other.
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


async def race(attempt: Attempt, targets: Iterable[Destination]) -> None:
    """Try the addresses until one has become a connection, and that is over.

    Raises:
        NotCalled: no address may be called.
        TurnedAway: none has; somebody was there, and has turned us away.
        DialError: none has; names what became of each.
    """
    won = succeeded = False
    failures: list[NetworkError] = []
    scopes: list[trio.CancelScope] = []
    over = trio.lowlevel.ParkingLot()  # an attempt is

    async def dial(target: Destination) -> None:
        nonlocal succeeded
        with trio.CancelScope() as scope:
            scopes.append(scope)
            try:
                await attempt(target, partial(claim, scope))
                succeeded = True
            except NotCalled:
                pass
            except (DialError, AddressError) as error:
                failures.append(error)
        over.unpark_all()

    def claim(winner: trio.CancelScope) -> None:
        nonlocal won
        if won:
            raise HandshakeFailed("another address was faster")
        won = True
        for scope in scopes:
            if scope is not winner:
                scope.cancel()

    async with trio.open_nursery() as nursery:
        for target in targets:
            nursery.start_soon(dial, target)
            with trio.move_on_after(HEAD_START_S):
                await over.park()
            if won:
                break
    if succeeded:
        return
    if not failures:
        raise NotCalled("none of its addresses is called now")
    turned_away = any(isinstance(error, TurnedAway) for error in failures)
    kind = TurnedAway if turned_away else DialError
    raise kind("; ".join(map(str, failures)))


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
