"""Ports: the node's interface for its drivers (network, clock, effects)."""

from collections.abc import Callable, Collection
from typing import Any, Protocol

from protocol.effects import Effect
from protocol.ids import PeerId
from protocol.view import SwarmView
from protocol.wire.fields import Envelope
from protocol.wire.messages import Message
from protocol.wire.parts import SeatStatus

Take = Callable[[PeerId, Any, bytes], None]
"""Takes a message of a peer, with its payload."""


class Ports(Protocol):
    """Implemented by the engine; drivers hold nothing else of each other."""

    def now(self) -> float:
        """Monotonic seconds."""

    def wall(self) -> float:
        """Unix seconds, by the swarm's clock."""

    def send(self, peer: PeerId, message: Message, payload: bytes = b"") -> None:
        """Queue a message; an unreachable peer is membership's business, not the caller's."""

    def linked(self) -> Collection[PeerId]:
        """The peers that we are linked with and have admitted."""

    def sign(self, kind: str, body: bytes) -> Envelope:
        """Sign a body of a kind for this swarm."""

    def perform(self, effect: Effect) -> None:
        """Perform an effect that every machine may return."""


class StageHolder:
    """The part above the engine: nothing here; an observer, or a volunteer's stages."""

    def __init__(self, stages: int) -> None:
        self.view = SwarmView(((),) * stages)

    def taker(self, message: Message) -> Take | None:
        """Return who takes a message to one of our stages, if we hold it."""
        return None

    def update_view(self, view: SwarmView) -> None:
        """Take a new view of the swarm."""
        self.view = view

    def assign(self, stage: int) -> None:
        """The matching gives us a stage, besides those we hold."""

    def drain(self, stage: int, reason: str) -> None:
        """The matching takes a stage away."""

    def amended(self) -> None:
        """There is a new amendment of the founder."""

    def seats(self) -> list[SeatStatus]:
        """Return what heartbeats say of our seats."""
        return []

    def tick(self, now: float) -> None:
        """Handle deadlines that have passed."""

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        return None
