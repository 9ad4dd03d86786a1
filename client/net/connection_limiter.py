"""Admission of inbound connections: which are let in, and which are closed to make room.

The rules are those of `protocol/SPEC.md`, section 6. Identities are free, so a proof of one grants
nothing: until a peer is a member, its connection is a stranger's. A link costs for as long as it
lasts, so once work has proven members to us, all others, strangers and members alike, are *guests*:
they share few places, and whoever waits gets in. No prefix is shut out for what some of it do: who
breaks rules there may be anybody's neighbour.

State: the inbound connections in the order in which they began, the proven peers, and the
handshakes of each machine. The clock is passed in; no sockets.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from protocol.hosts import is_loopback, machine_of, prefix_of
from protocol.ids import PeerId
from protocol.token_bucket import Rate, TokenBuckets

Turns = dict[tuple[str, str], Rate]
"""What has to be waited for: each turn has the reason of a refusal, and whose it is."""

MOST_WAIT_S = 2.0
"""Longest wait for each turn; a connection that would wait longer is refused."""
MACHINE_ARRIVALS = Rate(1.0, 16.0)
"""Handshakes of one machine; a home's volunteers start together."""
PREFIX_SHARE = 0.5
"""Of the handshakes of all, what one prefix gets: a home may have 65,536 machines by IPv6."""
MAX_TURNS = 2048
"""Machines and prefixes whose handshakes are counted; the one that came longest ago is forgotten.
"""
MAX_FRIENDS = 1024
"""Machines of proven members that are remembered."""
GUEST_EVERY_S = 4.0
"""The least time between two guests that make room where no prefix has more than another: of 16
places each lasts a minute."""
GUEST_STAYS_S = 60.0
"""How long a guest stays that is one too many from the start: who linked with us before work had
proven anybody may be about to work."""


@dataclass(frozen=True)
class HostLimits:
    """Bounds on the live connections, and on the time each may take to be established.

    Attributes:
        connections: of members, and those that we dialled.
        connections_per_ip, strangers_per_ip: of one machine (``protocol.hosts``).
        strangers: of peers that are no members (yet), on top of these.
        hello_s: how long an inbound connection may take to be admitted; None: there is no
            admission, and a peer with a proven identity counts as a member.
        arrivals_per_s, arrivals_burst: inbound connections, but for those from the machines of
            proven members; a handshake costs some 3 ms.
        links_per_s, links_burst: of these, strangers and guests with a proven identity; to agree on
            the lanes of a link costs some 5 ms more.
    """

    connections: int = 256
    connections_per_ip: int = 8
    strangers: int = 64
    strangers_per_ip: int = 4
    handshake_s: float = 10.0
    dial_s: float = 10.0
    hello_s: float | None = None
    arrivals_per_s: float = 2.0
    arrivals_burst: float = 256.0
    links_per_s: float = 1.0
    links_burst: float = 64.0


@dataclass(eq=False)
class InboundConnection:
    """An inbound connection from its first byte to its last."""

    ip: str
    """The other end's address, a number."""
    evict: Callable[[], None]
    """Ends it, from any task."""
    peer: PeerId | None = None
    """Known once the handshake is over."""
    admitted: bool = False
    """Whether its Hello was accepted."""
    leaving: bool = False
    """Whether it was told to leave."""
    since: float = 0.0
    """When its peer was known, monotonic seconds."""
    relay: PeerId | None = None
    """The relay that passes it on; it then has no address, and the relay bounds its number."""
    machine: str = field(init=False)
    """What it is counted by."""

    def __post_init__(self) -> None:
        self.machine = machine_of(self.ip)

    @property
    def near(self) -> bool:
        """Whether it is not counted by its address: it has none, or comes from this machine."""
        return self.relay is not None or is_loopback(self.ip)

    @property
    def origin(self) -> str:
        """What shares the places of guests with all others: a prefix, a relay or this machine."""
        return self.relay or ("" if self.near else prefix_of(self.ip))


class Refusal(Exception):
    """A connection is not let in; the message is one word that names the reason."""


@dataclass
class ConnectionLimiter:
    """See the module's docstring.

    Attributes:
        is_member: whether a peer's connections have their own places.
        dialled: connections that we dialled and that are alive.
    """

    limits: HostLimits
    is_member: Callable[[PeerId], bool]
    dialled: int = 0
    _proven: frozenset[PeerId] | None = None
    _guests: int = 0
    _next_guest: float = -math.inf
    _inbound: OrderedDict[InboundConnection, None] = field(default_factory=OrderedDict)
    _by_machine: Counter[str] = field(default_factory=Counter)
    _turns: TokenBuckets[tuple[str, str]] = field(default_factory=lambda: TokenBuckets(MAX_TURNS))
    _friends: dict[str, None] = field(default_factory=dict)

    def arrive(self, inbound: InboundConnection, now: float) -> float:
        """Let a connection in, perhaps in place of another; return the seconds it must wait first.
        Raises Refusal: it is not let in, which costs nobody a turn or a place, and little time."""
        self._check(inbound)
        wait_s = self._take_turns(self._turns_of(inbound), now)
        self._make_room(inbound)
        self._inbound[inbound] = None
        self._by_machine[inbound.machine] += 1
        return wait_s

    def recognise(self, inbound: InboundConnection, peer: PeerId, now: float) -> float:
        """Note the proven identity; return the seconds that its link must wait: none for a member,
        unless it is a guest. Raises Refusal: too many strangers come, or there is no place for
        another guest."""
        if not self._is_guest(peer):
            inbound.peer, inbound.since = peer, now
            stranger = self._is_stranger(inbound)
            return self._take_turns(self._link_turn, now) if stranger else 0.0
        there = [other for other in self._inbound if self._is_guest(other.peer)]
        room = self._room_for_guest(inbound, peer, there, now)
        wait_s = self._take_turns(self._link_turn, now)
        if room:
            self._next_guest = max(self._next_guest, now + GUEST_EVERY_S)
            _evict_down_to(room, len(room) - 1)
        inbound.peer, inbound.since = peer, now
        return wait_s

    def trust(
        self, proven: Collection[PeerId] | None, guests: int, ips: Iterable[str], now: float
    ) -> None:
        """All others than the proven peers are guests from now on (None: nobody is); those too many
        for their number of places leave once they had time to begin to work. At ``ips`` proven
        peers are linked with us."""
        for ip in ips:
            self._friends.pop(machine_of(ip), None)
            self._friends[machine_of(ip)] = None
            if len(self._friends) > MAX_FRIENDS:
                del self._friends[next(iter(self._friends))]
        self._proven, self._guests = None if proven is None else frozenset(proven), guests
        there = [v for v in self._inbound if self._is_guest(v.peer) and not v.leaving]
        stayed = [v for v in there if now - v.since >= GUEST_STAYS_S]
        _evict_down_to(stayed, len(stayed) - max(0, len(there) - guests))

    def leave(self, inbound: InboundConnection) -> None:
        del self._inbound[inbound]
        self._by_machine[inbound.machine] -= 1
        if not self._by_machine[inbound.machine]:
            del self._by_machine[inbound.machine]  # as small as the set of connected addresses

    def _turns_of(self, inbound: InboundConnection) -> Turns:
        """Return the turns that its handshake waits for, its machine's own first: one machine that
        comes too often costs no other a turn."""
        all_ = Rate(self.limits.arrivals_per_s, self.limits.arrivals_burst)
        common: Turns = {("too-many-arrivals", ""): all_}
        if inbound.near:
            return common
        own: Turns = {("too-many-arrivals-from-one-ip", inbound.machine): MACHINE_ARRIVALS}
        if inbound.machine in self._friends:
            return own
        of_prefix = Rate(
            max(MACHINE_ARRIVALS.per_s, PREFIX_SHARE * all_.per_s),
            max(MACHINE_ARRIVALS.burst, PREFIX_SHARE * all_.burst),
        )
        return own | {("too-many-arrivals-from-one-prefix", inbound.origin): of_prefix} | common

    @property
    def _link_turn(self) -> Turns:
        return {("too-many-strangers", ""): Rate(self.limits.links_per_s, self.limits.links_burst)}

    def _take_turns(self, turns: Turns, now: float) -> float:
        """Return the seconds to wait for some turns; a Refusal takes none of them."""
        for turn in turns:
            if self._turns.wait_s(turn, now) > MOST_WAIT_S:
                raise Refusal(turn[0])
        return max(self._turns.reserve(turn, rate, now) for turn, rate in turns.items())

    def _room_for_guest(
        self, inbound: InboundConnection, peer: PeerId, there: list[InboundConnection], now: float
    ) -> list[InboundConnection]:
        """Return the guests of which one must leave for another one; none: there is room. Raises
        Refusal: none of them has to."""
        staying = [other for other in there if not other.leaving]
        if len(staying) < self._guests or any(other.peer == peer for other in staying):
            return []
        count = Counter(other.origin for other in staying)
        fullest = max(count, key=lambda origin: count[origin])
        if count[fullest] > count[inbound.origin] + 1:
            return [other for other in staying if other.origin == fullest]
        if now < self._next_guest:
            raise Refusal("too-many-guests")
        return staying

    def _is_guest(self, peer: PeerId | None) -> bool:
        return peer is not None and self._proven is not None and peer not in self._proven

    def _check(self, inbound: InboundConnection) -> None:
        members = sum(not self._is_stranger(other) for other in self._inbound)
        if self.dialled + members >= self.limits.connections:
            raise Refusal("too-many-connections")
        full = self._by_machine[inbound.machine] >= self.limits.connections_per_ip
        if full and not inbound.near:
            raise Refusal("too-many-from-one-ip")

    def _make_room(self, inbound: InboundConnection) -> None:
        """Close the oldest strangers until there is room for this one."""
        strangers = self._strangers()
        if not is_loopback(inbound.ip):
            place = inbound.machine, inbound.relay
            same = [other for other in strangers if (other.machine, other.relay) == place]
            _evict_down_to(same, self.limits.strangers_per_ip - 1)
        _evict_down_to(self._strangers(), self.limits.strangers - 1)

    def _strangers(self) -> list[InboundConnection]:
        return [v for v in self._inbound if self._is_stranger(v) and not v.leaving]

    def _is_stranger(self, inbound: InboundConnection) -> bool:
        return inbound.peer is None or not self.is_member(inbound.peer)


def _evict_down_to(strangers: list[InboundConnection], count: int) -> None:
    """Close the oldest ones, beginning with those not admitted (the sort is stable)."""
    strangers.sort(key=lambda inbound: inbound.admitted)
    for inbound in strangers[: max(0, len(strangers) - count)]:
        inbound.leaving = True
        inbound.evict()
