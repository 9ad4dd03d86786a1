"""What drivers need of the node: the network, the clock, events. One interface, so each is thin."""

from __future__ import annotations

from typing import Protocol

from client.events import Event
from protocol.effects import Effect
from protocol.ids import PeerId
from protocol.wire.messages import Message


class Hub(Protocol):
    """Implemented by the engine; drivers hold nothing else of each other."""

    def now(self) -> float:
        """Monotonic seconds."""

    def send(self, peer: PeerId, message: Message, payload: bytes = b"") -> None:
        """Queue a message; an unreachable peer is membership's business, not the caller's."""

    def perform(self, effect: Effect) -> None:
        """Perform an effect that every machine may return."""

    def publish(self, event: Event) -> None:
        """Put an event into the node's log."""
