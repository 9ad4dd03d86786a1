"""Values and events that membership reports about the swarm; no behaviour."""

from dataclasses import dataclass
from typing import Any

from protocol.effects import Effect
from protocol.ids import PeerId
from protocol.membership.advert import Advert
from protocol.wire.fields import Envelope
from protocol.wire.parts import SeatStatus


@dataclass(frozen=True, slots=True)
class Member:
    """A live volunteer as seen from here."""

    peer: PeerId
    advert: Advert
    seats: tuple[SeatStatus, ...]
    """From its heartbeats if we are linked, else from its advert (then versions lag)."""
    linked: bool


@dataclass(frozen=True, slots=True)
class HeldSeat:
    """A live volunteer's seat in one stage."""

    peer: PeerId
    seat: SeatStatus


@dataclass(frozen=True, slots=True)
class MemberUp:
    """A volunteer has become a live member."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class MemberDown:
    """A volunteer is no live member any more, or is presumed dead."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class ViewChanged:
    """The live members, their stages, or the state of a seat changed."""

    about: PeerId | None
    """The member that changed; None: several."""


@dataclass(frozen=True, slots=True)
class RecordChanged:
    """A verified record other than an advert is new to us."""

    kind: str
    signer: PeerId
    said: Any
    """The body."""


@dataclass(frozen=True, slots=True)
class RecordGone:
    """A record other than an advert expired or was displaced."""

    kind: str
    signer: PeerId


@dataclass(frozen=True, slots=True)
class Contradicted:
    """An author has signed two bodies that cannot both be true."""

    held: Envelope
    other: Envelope


RosterEvent = MemberUp | MemberDown | ViewChanged
MembershipEffect = Effect | RosterEvent | RecordChanged | RecordGone | Contradicted
