"""Values and events that membership reports about the swarm; no behaviour."""

from dataclasses import dataclass
from typing import Any, Literal

from protocol.effects import Effect
from protocol.ids import PeerId
from protocol.membership.advert import Advert
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
class ViewChanged:
    """The live members, their stages, or the state of a seat changed."""

    about: PeerId | None
    """The member that changed; None: several."""
    turned: Literal["", "up", "down"] = ""
    """Whether it has become a live member, or is none any more."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RecordChanged:
    """A verified record other than an advert is new to us, or has gone."""

    kind: str
    signer: PeerId
    said: Any
    """The body; None: the record expired or was displaced."""


MembershipEffect = Effect | ViewChanged | RecordChanged
