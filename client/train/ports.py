"""Ports: the node's interface for its drivers (network, clock, effects)."""

from collections.abc import Callable, Collection
from typing import Any, Protocol

from protocol.amendments.book import Amendments
from protocol.ids import PeerId, Stage, SwarmId
from protocol.manifest import Manifest
from protocol.membership.view import MembershipEffect
from protocol.recovery.effects import GivenUp
from protocol.recovery.stored import Lineage
from protocol.rounds.quorum import Quorum
from protocol.view import SwarmView
from protocol.wire.fields import Envelope
from protocol.wire.messages import Message
from protocol.wire.parts import SeatStatus

Take = Callable[[PeerId, Any, bytes], None]
"""Takes a message of a peer, with its payload."""


class Ports(Protocol):
    """Implemented by the engine; drivers hold nothing else of each other."""

    me: PeerId
    """This volunteer."""
    manifest: Manifest
    swarm: SwarmId
    held_stages: "StageHolder"

    @property
    def amendments(self) -> Amendments:
        """The founder's that are known."""

    def now(self) -> float:
        """Monotonic seconds."""

    def wall(self) -> float:
        """Unix seconds."""

    def send(self, peer: PeerId, message: Message, payload: bytes = b"") -> None:
        """Queue a message; an unreachable peer is membership's business, not the caller's."""

    def linked(self) -> Collection[PeerId]:
        """The peers that we are linked with and have admitted."""

    def sign(self, kind: str, body: bytes) -> Envelope:
        """Sign a body of a kind for this swarm."""

    def perform(self, *effects: MembershipEffect) -> None:
        """Perform effects that a machine has returned."""

    def warn(self, words: str) -> None:
        """Tell the owner what is wrong with what is kept on the disk."""

    def ability_changed(self) -> None:
        """Tell the matching and the swarm which stages this volunteer cannot take."""


class StageHolder:
    """The part above the engine: nothing here; an observer, or a volunteer's stages."""

    def __init__(self, stages: int) -> None:
        self.view = SwarmView(((),) * stages)
        self.held: dict[int, Any] = {}
        """By stage: what holds it, or is to; the oldest first."""

    def taker(self, message: Message) -> Take | None:
        """Return who takes a message to one of our stages, if we hold it."""
        return None

    def update_view(self, view: SwarmView) -> None:
        """Take a new view of the swarm."""
        self.view = view

    def linked(self, peer: PeerId) -> None:
        """A member has come."""

    def unable(self) -> dict[Stage, str]:
        """Return the stages that cannot be taken, with the reasons."""
        return {}

    def assign(self, stage: int) -> None:
        """The matching gives us a stage, besides those we hold."""

    def drain(self, stage: int) -> None:
        """The matching takes a stage away."""

    def seats(self) -> list[SeatStatus]:
        """Return what heartbeats say of our seats."""
        return []

    def begin_anew(self, lineage: Lineage, given_up: GivenUp | None) -> None:
        """Acquire every stage again from the start of this lineage, for which our line of the run
        may have been given up."""

    def quorums(self) -> list[Quorum]:
        """Return those of our open seats."""
        return []

    def save_now(self) -> None:
        """Write a checkpoint of the version that each seat serves."""

    def tick(self, now: float) -> None:
        """Handle deadlines that have passed."""
