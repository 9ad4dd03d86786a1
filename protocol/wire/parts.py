"""Parts of messages: what a heartbeat says of a seat, a plan of a member, a digest of a record."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from protocol import limits
from protocol.wire.fields import (
    Attempt,
    Bitmap,
    Count,
    Era,
    NonNegative,
    PeerText,
    StageIndex,
    StepIndex,
)

Electors = Annotated[list[PeerText], Meta(max_length=limits.MAX_REPLICAS_IN_ROUND)]


class DigestEntry(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    kind: Annotated[str, Meta(min_length=1, max_length=32)]
    key: Annotated[str, Meta(max_length=96)]
    seq: Count


class SeatStatus(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a replica says of one stage it holds."""

    stage: StageIndex
    version: StepIndex
    state: Literal["fetching", "serving"]
    attempt: Attempt
    """Attempt of the round whose commit made this version."""
    digest: Annotated[bytes, Meta(max_length=32)]
    """Digest of the reduced gradient that made this version (empty at version 0)."""
    queue: Annotated[int, Meta(ge=0, le=65535)]
    rate: NonNegative
    """Microbatches per second it measured of itself."""
    seat: Annotated[int, Meta(ge=0, lt=limits.MAX_SEATS)] = 0
    """0: its home; 1: its second stage (dual homing)."""
    era: Era = 0
    leaving: bool = False
    """It takes no new work and goes when the step is closed."""
    moved: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Microbatches counted, and segments that have come for the round: it changes as long as the
    step goes on, however slow the machine or the line is."""
    missing: Annotated[tuple[PeerText, ...], Meta(max_length=limits.MAX_MISSING)] = ()
    """Of the roll, who is not there: without them the step is closed only when a majority of the
    electors has lost them."""


class PlanMember(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    peer: PeerText
    counted: Bitmap
    """Ids this member contributes. A plan counts every id for one member, so whatever else is in
    a member's ledger it subtracts first."""
