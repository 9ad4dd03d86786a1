"""Limits dialling addresses from adverts, so that lies about addresses have little effect.

An advert may name anybody's address, so dialling it needs a reason to believe it
(`protocol/SPEC.md`, section 7): its peer has answered us there (it is *believed*), the user or an
earlier session names it, or the peer was linked with us from the same machine (it is *likely*).

State: ranges and machines met, believed and named addresses, the last attempts; all bounded. The
clock is passed in.
"""

import ipaddress
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import TypeVar

from client.net.addresses import Destination
from protocol.hosts import PREFIX_BITS, Number, is_global, is_loopback, machine_of
from protocol.ids import PeerId
from protocol.token_bucket import TokenBucket

UNPROVEN_S = 60.0
LIKELY_S = 5.0
HOST_CALLS = 8
"""Calls a minute to unproven addresses of one machine; on loopback many volunteers are legitimate.
"""
BUDGET_PER_S, BUDGET_BURST = 0.5, 64.0
"""Calls to all unproven addresses; the burst is a full mesh that starts at once."""
MAX_ADDRESSES = 4
"""Addresses of one member."""
MAX_ENTRIES = 4096
"""Entries of each table; the oldest is forgotten."""
_PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "169.254.0.0/16",
        "100.64.0.0/10",
        "::1/128",
    )
)

Place = tuple[str, int]
"""Host and port: an address without the claimed peer."""

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
        self._machines: OrderedDict[PeerId, str] = OrderedDict()
        self._believed: OrderedDict[Place, PeerId] = OrderedDict()
        self._named: OrderedDict[Place, PeerId] = OrderedDict()
        self._called: OrderedDict[Place, float] = OrderedDict()
        self._called_machines: OrderedDict[str, deque[float]] = OrderedDict()
        self._budget = TokenBucket(BUDGET_PER_S, BUDGET_BURST, now)
        for ip in own:
            self._meet_range(ip)

    def met(self, peer: PeerId, ip: str) -> None:
        """A peer has proved its identity on a connection with this address."""
        _put(self._machines, peer, machine_of(ip))
        self._meet_range(ip)

    def believe(self, address: Destination) -> None:
        """A peer has answered where we called it."""
        _put(self._believed, _place_of(address), address.peer)

    def expect(self, address: Destination) -> None:
        """The user or an earlier session names this address."""
        _put(self._named, _place_of(address), address.peer)

    def _is_believed(self, address: Destination) -> bool:
        return self._believed.get(_place_of(address)) == address.peer

    def _is_named(self, address: Destination) -> bool:
        return self._named.get(_place_of(address)) == address.peer

    def is_in_reach(self, destination: Destination) -> bool:
        """Whether an address, a number, is public, believed, named, or in a private range where we
        have met a peer."""
        address = ipaddress.ip_address(destination.host)
        if address.is_unspecified or address.is_multicast:
            return False
        if address.is_reserved and not address.is_loopback:
            return False
        if address.version == 6 and address.is_link_local:
            return False  # it does not say on which line
        if self._is_believed(destination) or self._is_named(destination):
            return True
        private = range_of(address)
        return private is None or private in self._ranges

    def may_call(self, address: Destination, now: float) -> bool:
        """Whether to call a peer at this address, a number, now; if so, it is counted as called."""
        peer, ip, place = address.peer, address.host, _place_of(address)
        if not self.is_in_reach(address):
            return False
        if self._is_believed(address):
            return True
        machine = machine_of(ip)
        likely = self._is_named(address) or self._machines.get(peer) == machine
        if now - self._called.get(place, -UNPROVEN_S) < (LIKELY_S if likely else UNPROVEN_S):
            return False
        if not self._machine_allows(machine, ip, now) or not (likely or self._budget.take(1, now)):
            return False
        self._called_machines[machine].append(now)
        _put(self._called, place, now)
        return True

    def _machine_allows(self, machine: str, ip: str, now: float) -> bool:
        calls = self._called_machines.get(machine, deque(maxlen=HOST_CALLS))
        _put(self._called_machines, machine, calls)
        return is_loopback(ip) or len(calls) < HOST_CALLS or now - calls[0] >= UNPROVEN_S

    def _meet_range(self, ip: str) -> None:
        private = range_of(ipaddress.ip_address(ip))
        if private is not None:
            _put(self._ranges, private, None)


def range_of(address: Number) -> str | None:
    """Return the range within which an address means anything; None: everywhere."""
    if is_global(str(address)):
        return None
    for network in _PRIVATE:
        if address.version == network.version and address in network:
            return str(network)
    bits = 16 if address.version == 4 else PREFIX_BITS
    return str(ipaddress.ip_network((address, bits), strict=False))


def _place_of(address: Destination) -> Place:
    return address.host, address.port


def _put(table: OrderedDict[K, V], key: K, value: V) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > MAX_ENTRIES:
        table.popitem(last=False)
