"""The network without sockets: a hub whose members are linked, cut off and killed.

It runs on trio's clock, so a test may jump in time. Messages are encoded and parsed as on the wire,
and arrive at once. State: the members of the hub, and the pairs linked or cut.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import trio

from client.net.errors import AddressError, DialError, NetworkError
from client.net.host import Connection
from client.net.network import Inbound, NetEvent, NetworkStatistics, PeerDown, PeerUp
from client.net.penalties import PenaltyBox
from protocol.address import Address
from protocol.errors import LocalProtocolError
from protocol.hosts import Outer
from protocol.ids import PeerId
from protocol.wire.messages import Message, decode_message, encode_message
from protocol.wire.route import Lane

REDIAL_S = 0.25
_PREFIX = "/memory/"


class MemoryHub:
    """Made by `open_memory_hub`. Peers join it; tests cut, heal and kill."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._members: dict[PeerId, MemoryNetwork] = {}
        self._links: dict[tuple[PeerId, PeerId], None] = {}
        """Each in both directions."""
        self._cut: set[frozenset[PeerId]] = set()

    def join(self, peer: PeerId) -> MemoryNetwork:
        """Add a peer and return its network."""
        self._members[peer] = MemoryNetwork(self, peer)
        self._nursery.start_soon(self._members[peer].keep_wanted)
        return self._members[peer]

    def kill(self, peer: PeerId) -> None:
        """Remove a peer as by SIGKILL."""
        for other in self.linked(peer):
            self.unlink(peer, other, "connection lost")
        del self._members[peer]

    def partition(self, one: Sequence[PeerId], other: Sequence[PeerId]) -> None:
        """Cut every pair across; their links go down."""
        for a in one:
            for b in other:
                self._cut.add(frozenset((a, b)))
                self.unlink(a, b, "partitioned")

    def heal(self) -> None:
        """Undo every partition; wanted links come back by themselves."""
        self._cut.clear()

    def linked(self, peer: PeerId) -> tuple[PeerId, ...]:
        return tuple(to for (sender, to) in self._links if sender == peer)

    def link(self, a: PeerId, b: PeerId) -> None:
        """Link two members; raises DialError when one is absent, banned or cut off."""
        if (a, b) in self._links:
            return
        if not {a, b} <= self._members.keys() or frozenset((a, b)) in self._cut:
            raise DialError(f"{_PREFIX}{b}: nobody answers")
        now = trio.current_time()
        for one, other in ((a, b), (b, a)):
            if self._members[one].penalties.is_banned(other, now):
                raise DialError(f"{_PREFIX}{b}: banned for a while")
        for sender, to in ((a, b), (b, a)):
            self._links[sender, to] = None
            self._members[sender].tell(PeerUp(to))

    def unlink(self, a: PeerId, b: PeerId, reason: str) -> None:
        """Take down the link between ``a`` and ``b`` at both ends, with a ``reason``."""
        for sender, to in ((a, b), (b, a)):
            if (sender, to) in self._links:
                del self._links[sender, to]
                self._members[sender].tell(PeerDown(to, reason))

    def deliver(self, sender: PeerId, to: PeerId, message: Message, payload: bytes) -> None:
        if len(payload) > message.route.payload_limit:
            raise LocalProtocolError(f"{type(message).__name__} with {len(payload)} bytes")
        received = decode_message(encode_message(message))
        self._members[to].tell(Inbound(sender, received, bytes(payload)))


class MemoryNetwork:
    """One member's view of the hub; stands for `Libp2pNetwork`. The hub has room for all, and no
    addresses."""

    listening: Sequence[Address] = ()

    def __init__(self, hub: MemoryHub, peer: PeerId) -> None:
        self._hub, self.peer_id = hub, peer
        self._tell, self.events = trio.open_memory_channel[NetEvent](math.inf)
        self._wanted: Collection[PeerId] = ()
        self.trusted: Collection[PeerId] | None = None
        self._refused: Counter[str] = Counter()
        self._bytes_in = self._bytes_out = 0
        self.penalties = PenaltyBox()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The one address under which other members find us."""
        return (f"{_PREFIX}{self.peer_id}",)

    def post(self, peer: PeerId, message: Message, payload: bytes = b"") -> bool:
        if peer not in self._hub.linked(self.peer_id):
            return False
        self._bytes_out += len(payload)
        self._hub.deliver(self.peer_id, peer, message, payload)
        return True

    def unsent_bytes(self, peer: PeerId, lane: Lane) -> int:
        return 0

    async def wait_sent(self, peer: PeerId, lane: Lane) -> None:
        await trio.lowlevel.checkpoint()

    async def connect(self, *addresses: str) -> PeerId:
        await trio.lowlevel.checkpoint()
        address = addresses[0]
        if not address.startswith(_PREFIX):
            raise AddressError(f"not an address of this hub: {address!r}")
        peer = PeerId(address.removeprefix(_PREFIX))
        self._hub.link(self.peer_id, peer)
        return peer

    def want(self, peers: Mapping[PeerId, Sequence[str]]) -> None:
        self._wanted = peers.keys() - {self.peer_id}
        for peer in sorted(self._wanted):
            self._try(peer)

    def admit(self, peer: PeerId) -> None:
        pass

    def members(self, peers: Collection[PeerId]) -> None:
        pass

    def trust(self, proven: Collection[PeerId] | None, guests: int) -> None:
        self.trusted = proven

    def working(self) -> dict[PeerId, Connection]:
        return {}

    def relays(self) -> dict[PeerId, PeerId]:
        return {}

    def ends(self, peer: PeerId) -> None:
        return None

    def seen_at(self, hosts: Sequence[str], outers: Sequence[Outer]) -> None:
        pass

    async def disconnect(self, peer: PeerId, reason: str) -> None:
        """End the link, and stop wanting the peer."""
        self._wanted = {*self._wanted} - {peer}
        self._hub.unlink(self.peer_id, peer, reason)
        await trio.lowlevel.checkpoint()

    def penalise(self, peer: PeerId, points: int, reason: str) -> None:
        self._refused[reason] += 1
        if self.penalties.add(peer, points, trio.current_time()):
            self._hub.unlink(self.peer_id, peer, f"banned: {reason}")

    def expel(self, peer: PeerId, reason: str) -> None:
        self.penalties.expel(peer)
        self._hub.unlink(self.peer_id, peer, f"expelled: {reason}")

    def statistics(self) -> NetworkStatistics:
        """The counters as they are now; the hub measures no round trips."""
        return NetworkStatistics(
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            refused=dict(self._refused),
            peers=self._hub.linked(self.peer_id),
        )

    def tell(self, event: NetEvent) -> None:
        """Called by the hub."""
        self._bytes_in += len(event.payload) if isinstance(event, Inbound) else 0
        self._tell.send_nowait(event)

    async def keep_wanted(self) -> None:
        """Relink wanted peers whenever that has become possible, until cancelled."""
        while True:
            await trio.sleep(REDIAL_S)
            for peer in sorted(self._wanted):
                self._try(peer)

    def _try(self, peer: PeerId) -> None:
        with suppress(NetworkError):
            self._hub.link(self.peer_id, peer)


@asynccontextmanager
async def open_memory_hub() -> AsyncIterator[MemoryHub]:
    """Open a hub; all that it does ends with the block."""
    async with trio.open_nursery() as nursery:
        yield MemoryHub(nursery)
        nursery.cancel_scope.cancel()
