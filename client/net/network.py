"""What the network tells the rest of the client: messages of peers, and links that come and go."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.ids import PeerId
from protocol.wire.messages import Message


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
    tensor_bytes_out: int = 0
    """Bytes of activations, gradients and shards, before encryption: part of ``bytes_out``."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Frames and connections refused, by reason."""
    peers: tuple[PeerId, ...] = ()
    """Peers whose link is up."""
