"""Limits dialling addresses from adverts, so that lies about addresses have little effect.

An advert may name anybody's address. So dialling it needs a reason to believe it:

- A range that the internet does not route (loopback, private networks) is dialled only if we have
  met a peer there: distant strangers cannot make us dial our own machine or network.
- An address at which its peer has answered us is *proven*: it is dialled whenever it is wanted.
- An address whose peer was linked with us from the same host is *likely*: it is dialled once in a
  few seconds.
- Any other is dialled once a minute, no matter how many peers name it, and all of them within a
  small budget.

At one host only a few unproven addresses are dialled per minute.

Addresses named by the user are not limited here. State: ranges and hosts met, proven addresses, the
last attempts; all bounded. The clock is passed in.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import TypeVar

from client.net.addresses import Destination
from client.net.pacing import TokenBucket
from protocol.ids import PeerId

UNPROVEN_S = 60.0
LIKELY_S = 5.0
HOST_CALLS = 8
"""Calls a minute to unproven addresses of one host; on loopback many volunteers are legitimate."""
BUDGET_PER_S, BUDGET_BURST = 0.5, 64.0
"""Calls to all unproven addresses; the burst is a full mesh that starts at once."""
MAX_ADDRESSES = 4
"""Addresses of one member."""
MAX_ENTRIES = 4096
"""Entries of each table; the oldest is forgotten."""
_PRIVATE = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "169.254.0.0/16",
        "100.64.0.0/10",
    )
)

Place = tuple[str, int, str]
"""Host, port and transport: an address without the claimed peer."""

K = TypeVar("K")
V = TypeVar("V")


class Calls:
    """See the module's docstring.

    Args:
        own: addresses that we listen on and that name a range, not all of them.
        now: monotonic seconds.
    """

    def __init__(self, own: Iterable[str], now: float) -> None:
        self._ranges: OrderedDict[str, None] = OrderedDict()
        self._hosts: OrderedDict[PeerId, str] = OrderedDict()
        self._proven: OrderedDict[Place, PeerId] = OrderedDict()
        self._called: OrderedDict[Place, float] = OrderedDict()
        self._called_hosts: OrderedDict[str, deque[float]] = OrderedDict()
        self._budget = TokenBucket(BUDGET_PER_S, BUDGET_BURST, now)
        for ip in own:
            self._meet_range(ip)

    def met(self, peer: PeerId, ip: str) -> None:
        """A peer has proved its identity on a connection with this address."""
        _put(self._hosts, peer, ip)
        self._meet_range(ip)

    def answered(self, address: Destination) -> None:
        """A peer has answered where we called it."""
        _put(self._proven, _place_of(address), address.peer)

    def is_in_reach(self, ip: str) -> bool:
        """Whether an address is public, or in a private range where we have met a peer."""
        address = ipaddress.IPv4Address(ip)
        if address.is_unspecified or address.is_multicast or address.is_reserved:
            return False
        private = range_of(address)
        return private is None or private in self._ranges

    def may_call(self, address: Destination, now: float) -> bool:
        """Whether to call a peer at this address now; if so, it is counted as called.

        Args:
            address: its host is a number.
            now: monotonic seconds.
        """
        peer, ip, place = address.peer, address.host, _place_of(address)
        if not self.is_in_reach(ip):
            return False
        if self._proven.get(place) == peer:
            return True
        likely = self._hosts.get(peer) == ip
        if now - self._called.get(place, -UNPROVEN_S) < (LIKELY_S if likely else UNPROVEN_S):
            return False
        if not self._host_allows(ip, now) or not (likely or self._afford(now)):
            return False
        self._called_hosts[ip].append(now)
        _put(self._called, place, now)
        return True

    def _host_allows(self, ip: str, now: float) -> bool:
        _put(self._called_hosts, ip, self._called_hosts.get(ip, deque(maxlen=HOST_CALLS)))
        calls = self._called_hosts[ip]
        near = ipaddress.IPv4Address(ip).is_loopback
        return near or len(calls) < HOST_CALLS or now - calls[0] >= UNPROVEN_S

    def _afford(self, now: float) -> bool:
        if self._budget.reserve(1, now):
            self._budget.reserve(-1, now)
            return False
        return True

    def _meet_range(self, ip: str) -> None:
        private = range_of(ipaddress.IPv4Address(ip))
        if private is not None:
            _put(self._ranges, private, None)


def range_of(address: ipaddress.IPv4Address) -> str | None:
    """Return the range within which an address means anything; None: everywhere."""
    if address.is_global:
        return None
    for network in _PRIVATE:
        if address in network:
            return str(network)
    return str(ipaddress.IPv4Network((address, 16), strict=False))


def is_public(ip: str) -> bool:
    """Whether an address means the same machine everywhere on the internet."""
    return range_of(ipaddress.IPv4Address(ip)) is None


def _place_of(address: Destination) -> Place:
    return address.host, address.port, address.transport


def _put(table: OrderedDict[K, V], key: K, value: V) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > MAX_ENTRIES:
        table.popitem(last=False)
