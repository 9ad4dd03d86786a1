"""The network's interface for the rest of the client: typed messages to and from peers.

`libp2p_network.py` implements it on real sockets; tests have a lossy hub in memory. A link delivers
in order within a lane while it is up. When it goes down, messages in flight are lost, and a few may
be lost when two simultaneous connections are merged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import trio

from protocol.address import Address
from protocol.hosts import Outer
from protocol.ids import PeerId
from protocol.reachability.machine import Ends
from protocol.wire.messages import Message
from protocol.wire.route import Lane


@dataclass(frozen=True, slots=True)
class Inbound:
    """A well-formed message from an authenticated peer; its meaning is still to be judged."""

    peer: PeerId
    message: Message
    payload: bytes


@dataclass(frozen=True, slots=True)
class PeerUp:
    """A link to this peer works in both lanes."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerDown:
    """The link to this peer is gone; its queued messages are lost."""

    peer: PeerId
    reason: str
    by_peer: bool = False
    """Whether the other side ended it without a word, as its system does for a process that died.
    Whoever bans us or wants no link says so."""


NetEvent = Inbound | PeerUp | PeerDown


@dataclass(frozen=True)
class NetworkStatistics:
    """Counters since the network was opened."""

    bytes_in: int = 0
    """Bytes received from sockets, encryption and framing included."""
    bytes_out: int = 0
    frames_in: int = 0
    """Well-formed frames received."""
    tensor_bytes_out: int = 0
    """Bytes of activations, gradients and shards, before encryption: part of ``bytes_out``."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Frames and connections refused, by reason."""
    peers: tuple[PeerId, ...] = ()
    """Peers whose link is up."""
    relays: Mapping[PeerId, PeerId] = field(default_factory=dict)
    """The relay through which a link goes, by peer, where one does."""
    punched: tuple[PeerId, ...] = ()
    """Those of them with whom both sides had to dial at once: routers let nobody else in."""
    rtt_s: Mapping[PeerId, float] = field(default_factory=dict)
    """Smoothed round trip of a small message, queues included, by peer."""


class Network(Protocol):
    """Messages to and from peers. All methods are to be called from one trio thread."""

    @property
    def peer_id(self) -> PeerId:
        """Our peer id."""
        ...

    @property
    def addresses(self) -> tuple[str, ...]:
        """Full multiaddrs under which we listen."""
        ...

    @property
    def events(self) -> trio.abc.ReceiveChannel[NetEvent]:
        """Network events; a bounded queue that applies backpressure to peers while it is full."""
        ...

    def post(self, peer: PeerId, message: Message, payload: bytes = b"") -> bool:
        """Queue ``message`` with its ``payload`` for ``peer`` without blocking; without a link it
        is dropped. A peer for which too much waits, or most where too much waits for all, loses its
        link.

        Returns:
            whether nothing has to make room first.

        Raises:
            LocalProtocolError: no peer would accept it.
        """
        ...

    def unsent_bytes(self, peer: PeerId, lane: Lane) -> int:
        """Return the bytes of a lane not yet taken by the connection; 0 without a link."""
        ...

    async def wait_sent(self, peer: PeerId, lane: Lane) -> None:
        """Wait until a lane is empty, or the link has ended."""
        ...

    async def connect(self, *addresses: str) -> PeerId:
        """Dial a peer at any of its multiaddrs, and wait until its link is up.

        Raises:
            AddressError, DialError: names the attempts and their results.
        """
        ...

    def want(self, peers: Mapping[PeerId, Sequence[str]]) -> None:
        """Replace the set of peers to stay connected with, and their addresses."""
        ...

    def admit(self, peer: PeerId) -> None:
        """Accept a peer's messages from now on, as long as its link lasts: its Hello was
        accepted."""
        ...

    def members(self, peers: Collection[PeerId]) -> None:
        """Replace the set of known members; all others share the small budget of strangers."""
        ...

    def trust(self, proven: Collection[PeerId] | None, guests: int) -> None:
        """Replace the set of peers that work has proven. All others, members or not, share so many
        places among the links that come to us; None: all are alike."""
        ...

    def expect_payloads(self, largest_bytes: int, usual_bytes: int, round_bytes: int) -> None:
        """Set the largest and the usual payload sizes of this run in bytes, and the size of a
        stage's gradient as it is averaged: all of a round are queued at once."""
        ...

    def relayed(self) -> frozenset[PeerId]:
        """Return the peers whose link goes through a relay."""
        ...

    async def in_reach(self, addresses: Sequence[str]) -> list[str]:
        """Return the addresses of a member's advert that we would dial."""
        ...

    @property
    def listening(self) -> Sequence[Address]:
        """Where we listen; hosts may stand for all addresses of this machine."""
        ...

    def ends(self, peer: PeerId) -> Ends | None:
        """Return the ends of the link to a peer; None: there is none, or it goes through another
        peer."""
        ...

    def seen_at(self, hosts: Sequence[str], outers: Sequence[Outer]) -> None:
        """Note the hosts at which members of other networks see us, numbers: a peer with one of
        them is in our own home; and a port of ours for each kind of host that everybody sees at
        one place."""
        ...

    async def probe(self, peer: PeerId, port: int) -> bool | None:
        """Ask a linked peer to dial us at the address at which it sees us, from a fresh port.

        Returns whether we have proved our identity there. None: it would not dial, or does not
        answer, or there is no such link.
        """
        ...

    async def disconnect(self, peer: PeerId, reason: str) -> None:
        """End the link to a peer after a last attempt to flush it, and stop wanting it."""
        ...

    def penalise(self, peer: PeerId, points: int, reason: str) -> None:
        """Add ``points`` to ``peer``'s score for ``reason``; at 100 its link is cut and it is
        banned for a while."""
        ...

    def expel(self, peer: PeerId, reason: str) -> None:
        """Cut a peer's link and refuse its connections, however long we run, as long as there are
        not too many such peers: its Hello has to be refused as well."""
        ...

    def statistics(self) -> NetworkStatistics:
        """Return the counters as they are now."""
        ...
