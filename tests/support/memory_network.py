"""The network without sockets: a hub whose members are linked, cut off and killed.

It runs on trio's clock, so a test may jump in time.
Messages are encoded and parsed as on the wire. State: the members of the hub, the pairs linked or
cut, and one outbound queue per direction of each link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from client.net.errors import AddressError, DialError, NetworkError
from client.net.network import Inbound, NetEvent, NetworkStatistics, PeerDown, PeerUp
from client.net.penalties import PenaltyBox
from client.net.queues import ByteQueue
from protocol.address import Address
from protocol.errors import LocalProtocolError
from protocol.hosts import Outer
from protocol.ids import PeerId
from protocol.reachability.machine import Ends
from protocol.wire.messages import Message, decode_message, encode_message
from protocol.wire.route import Lane

EVENT_ITEMS = 4096
EVENT_BYTES = 256 * 1024 * 1024
REDIAL_S = 0.25
POLL_S = 0.01
_PREFIX = "/memory/"


@dataclass(frozen=True, slots=True)
class _Parcel:
    header: bytes
    payload: bytes


@dataclass
class _Pipe:
    """One direction of a link; ``scope`` ends its task."""

    queue: ByteQueue[_Parcel]
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class MemoryHub:
    """Made by `open_memory_hub`. Peers join it; tests cut, heal and kill."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._members: dict[PeerId, MemoryNetwork] = {}
        self._pipes: dict[tuple[PeerId, PeerId], _Pipe] = {}
        self._cut: set[frozenset[PeerId]] = set()

    def join(self, peer: PeerId) -> MemoryNetwork:
        """Add a peer (again, after a kill) and return its network."""
        if peer in self._members:
            raise LocalProtocolError(f"{peer} is in the hub already")
        self._members[peer] = MemoryNetwork(self, peer)
        self._nursery.start_soon(self._members[peer].keep_wanted)
        return self._members[peer]

    def kill(self, peer: PeerId) -> None:
        """Remove a peer as by SIGKILL: its messages that have not arrived are lost."""
        for other in self.linked(peer):
            self.unlink(peer, other, "connection lost")
        self._members.pop(peer).killed()

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
        return tuple(to for (sender, to) in self._pipes if sender == peer)

    def link(self, a: PeerId, b: PeerId) -> None:
        """Link two members; raises DialError when one is absent, banned or cut off."""
        if (a, b) in self._pipes:
            return
        if b not in self._members or a not in self._members or frozenset((a, b)) in self._cut:
            raise DialError(f"{_PREFIX}{b}: nobody answers")
        now = trio.current_time()
        if self._members[b].penalties.is_banned(a, now) or self._members[a].penalties.is_banned(
            b, now
        ):
            raise DialError(f"{_PREFIX}{b}: banned for a while")
        for sender, to in ((a, b), (b, a)):
            pipe = _Pipe(ByteQueue[_Parcel](_parcel_size))
            self._pipes[sender, to] = pipe
            self._members[sender].tell(PeerUp(to))
            self._nursery.start_soon(self._pump, sender, to, pipe)

    def unlink(self, a: PeerId, b: PeerId, reason: str) -> None:
        """Take down the link between ``a`` and ``b`` at both ends, with a ``reason``."""
        for sender, to in ((a, b), (b, a)):
            if pipe := self._pipes.pop((sender, to), None):
                pipe.scope.cancel()
                pipe.queue.close()
                self._members[sender].tell(PeerDown(to, reason))

    def pipe(self, sender: PeerId, to: PeerId) -> ByteQueue[_Parcel]:
        """Return the outbound queue of a link."""
        return self._pipes[sender, to].queue

    def parcel(self, message: Message, payload: bytes) -> _Parcel:
        if len(payload) > message.route.payload_limit:
            raise LocalProtocolError(f"{type(message).__name__} with {len(payload)} bytes")
        return _Parcel(encode_message(message), bytes(payload))

    async def _pump(self, sender: PeerId, to: PeerId, pipe: _Pipe) -> None:
        with pipe.scope:
            async for parcel in pipe.queue:
                await trio.lowlevel.checkpoint()
                message = decode_message(parcel.header)
                await self._members[to].deliver(Inbound(sender, message, parcel.payload))


class MemoryNetwork:
    """One member's view of the hub; stands for `Libp2pNetwork`."""

    def __init__(self, hub: MemoryHub, peer: PeerId) -> None:
        self._hub = hub
        self._peer = peer
        self._events = ByteQueue[NetEvent](_event_size, EVENT_ITEMS, EVENT_BYTES)
        self._wanted: dict[PeerId, tuple[str, ...]] = {}
        self.trusted: Collection[PeerId] | None = None
        self._alive = trio.CancelScope()
        self._refused: Counter[str] = Counter()
        self._bytes_in = self._bytes_out = 0
        self.penalties = PenaltyBox()

    @property
    def peer_id(self) -> PeerId:
        return self._peer

    @property
    def addresses(self) -> tuple[str, ...]:
        """The one address under which other members find us."""
        return (f"{_PREFIX}{self._peer}",)

    @property
    def events(self) -> ByteQueue[NetEvent]:
        """Network events, in order for each peer."""
        return self._events

    def post(self, peer: PeerId, message: Message, payload: bytes = b"") -> bool:
        """Queue ``message`` with its ``payload``; return whether there is a link."""
        parcel = self._hub.parcel(message, payload)
        if peer not in self._hub.linked(self._peer):
            return False
        self._bytes_out += _parcel_size(parcel)
        self._hub.pipe(self._peer, peer).append(parcel)
        return True

    def unsent_bytes(self, peer: PeerId, lane: Lane) -> int:
        """Return the bytes queued for this peer; the hub has one lane."""
        if peer not in self._hub.linked(self._peer):
            return 0
        return self._hub.pipe(self._peer, peer).size_bytes

    async def wait_sent(self, peer: PeerId, lane: Lane) -> None:
        """Wait until the hub has taken everything."""
        while self.unsent_bytes(peer, lane):
            await trio.sleep(POLL_S)

    async def connect(self, *addresses: str) -> PeerId:
        """Link to the member of an address. See `Libp2pNetwork.connect`."""
        await trio.lowlevel.checkpoint()
        address = addresses[0]
        if not address.startswith(_PREFIX):
            raise AddressError(f"not an address of this hub: {address!r}")
        peer = PeerId(address.removeprefix(_PREFIX))
        if peer == self._peer:
            raise DialError(f"{address} is this very peer")
        self._hub.link(self._peer, peer)
        return peer

    def want(self, peers: Mapping[PeerId, Sequence[str]]) -> None:
        """Replace the set of peers to stay connected with."""
        self._wanted = {peer: tuple(at) for peer, at in peers.items() if peer != self._peer}
        for peer in self._wanted:
            self._try(peer)

    def admit(self, peer: PeerId) -> None:
        """The hub admits every peer."""

    def members(self, peers: Collection[PeerId]) -> None:
        """The hub has no budget for strangers."""

    def trust(self, proven: Collection[PeerId] | None, guests: int) -> None:
        """The hub has room for all; what it is told is kept."""
        self.trusted = proven

    def expect_payloads(self, largest_bytes: int, usual_bytes: int, round_bytes: int) -> None:
        """The hub delivers whole frames."""

    def relayed(self) -> frozenset[PeerId]:
        return frozenset()

    async def in_reach(self, addresses: Sequence[str]) -> list[str]:
        """Return all: the hub has no ranges."""
        await trio.lowlevel.checkpoint()
        return list(addresses)

    @property
    def listening(self) -> Sequence[Address]:
        """Nowhere."""
        return ()

    def ends(self, peer: PeerId) -> Ends | None:
        """Return None: there are no addresses here."""
        return None

    def seen_at(self, hosts: Sequence[str], outers: Sequence[Outer]) -> None:
        """Do nothing."""

    async def probe(self, peer: PeerId, port: int) -> bool | None:
        """Ask nobody."""
        await trio.lowlevel.checkpoint()
        return None

    async def disconnect(self, peer: PeerId, reason: str) -> None:
        """Flush, end the link, and stop wanting the peer."""
        self._wanted.pop(peer, None)
        if peer in self._hub.linked(self._peer):
            with trio.move_on_after(1.0):
                await self.wait_sent(peer, "control")
            self._hub.unlink(self._peer, peer, reason)
        await trio.lowlevel.checkpoint()

    def penalise(self, peer: PeerId, points: int, reason: str) -> None:
        """Add ``points`` to ``peer``'s score for ``reason``; at 100 it is cut off and banned."""
        self._refused[reason] += 1
        if self.penalties.add(peer, points, trio.current_time()):
            self._hub.unlink(self._peer, peer, f"banned: {reason}")

    def expel(self, peer: PeerId, reason: str) -> None:
        """Cut a peer off for good. See `Libp2pNetwork.expel`."""
        self.penalties.expel(peer)
        self._hub.unlink(self._peer, peer, f"expelled: {reason}")

    def statistics(self) -> NetworkStatistics:
        """Return the counters as they are now; the hub measures no round trips."""
        return NetworkStatistics(
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            refused=dict(self._refused),
            peers=self._hub.linked(self._peer),
        )

    # Called by the hub.

    def tell(self, event: PeerUp | PeerDown) -> None:
        """Note that a link came up or went down."""
        assert len(self._events) < EVENT_ITEMS, "a test left thousands of events unread"
        self._events.append(event)

    async def deliver(self, event: Inbound) -> None:
        """Hand over a message, waiting while the events are full."""
        await self._events.put(event)
        self._bytes_in += len(event.payload)

    async def keep_wanted(self) -> None:
        """Relink wanted peers whenever that has become possible, until killed."""
        with self._alive:
            while True:
                await trio.sleep(REDIAL_S)
                for peer in self._wanted:
                    self._try(peer)

    def killed(self) -> None:
        """End this member: its events end once those inside are read."""
        self._alive.cancel()
        self._events.close()

    def _try(self, peer: PeerId) -> None:
        try:
            self._hub.link(self._peer, peer)
        except NetworkError:
            self._refused["dial-failed"] += 1


@asynccontextmanager
async def open_memory_hub() -> AsyncIterator[MemoryHub]:
    """Open a hub; every delivery on its way ends with the block."""
    async with trio.open_nursery() as nursery:
        yield MemoryHub(nursery)
        nursery.cancel_scope.cancel()


def _parcel_size(parcel: _Parcel) -> int:
    return len(parcel.header) + len(parcel.payload)


def _event_size(event: NetEvent) -> int:
    return len(event.payload) + 512 if isinstance(event, Inbound) else 128
