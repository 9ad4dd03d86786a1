"""Parts of messages: what a heartbeat says of a seat, a plan of a member, a digest of a record."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from protocol import limits
from protocol.wire.fields import (
    Attempt,
    Bitmap,
    Count,
    Envelope,
    Era,
    Finite,
    Hash32,
    NonNegative,
    PeerText,
    Signature,
    StageIndex,
    StepIndex,
)

Electors = Annotated[list[PeerText], Meta(max_length=limits.MAX_ELECTORS)]


class Expulsion(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A member is expelled: the signed statement, and the chain of the expelled member, which shows
    that its signer may do that."""

    statement: Envelope
    chain: Annotated[list[Envelope], Meta(max_length=limits.MAX_CHAIN)]


class DigestEntry(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    kind: Annotated[str, Meta(min_length=1, max_length=32)]
    key: Annotated[str, Meta(max_length=96)]
    seq: Count
    mark: Annotated[bytes, Meta(min_length=8, max_length=8)]
    """Of the body's BLAKE2b."""


class Proof(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Two signed bodies of one author that contradict each other; ``first`` is the lower body."""

    first: Envelope
    second: Envelope

    @property
    def envelopes(self) -> tuple[Envelope, Envelope]:
        """Both."""
        return self.first, self.second


class VotedOut(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A member that its stage has expelled, with the charges of a majority."""

    stage: StageIndex
    member: PeerText
    charges: Annotated[
        tuple[Envelope, ...], Meta(min_length=1, max_length=limits.MAX_REPLICAS_IN_ROUND)
    ]


class SeatStatus(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A replica's report on one stage it holds."""

    stage: StageIndex
    version: StepIndex
    state: Literal["fetching", "serving"]
    queue: Annotated[int, Meta(ge=0, le=65535)]
    rate: NonNegative
    """Its own throughput as it measured it, microbatches per second."""
    seat: Annotated[int, Meta(ge=0, lt=limits.MAX_SEATS)] = 0
    """0: its home; 1: its second stage (dual homing)."""
    era: Era = 0
    leaving: bool = False
    """It drains: it accepts no new work and leaves when the step is closed."""
    moved: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Microbatches counted plus segments received for the round. It changes as long as the step
    makes progress, however slow the machine or the line is."""
    missing: Annotated[tuple[PeerText, ...], Meta(max_length=limits.MAX_MISSING)] = ()
    """Members of the roll that are missing. Without them the step is closed only when a majority of
    the electors has lost them."""
    audited: Annotated[tuple[PeerText, ...], Meta(max_length=limits.MAX_REPLICAS_IN_ROUND)] = ()
    """Replicas of the stage whose work the sender has audited in agreement."""
    returned: bool = False
    """The stage has counted all microbatches of the step: it has valid gradients for them."""


class CertifiedPart(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One stage's part of a waypoint, and the signatures of its witnesses (``waypoints/``)."""

    body: Annotated[bytes, Meta(max_length=limits.MAX_PART_BYTES)]
    signatures: Annotated[
        tuple[tuple[PeerText, Annotated[bytes, Meta(min_length=64, max_length=64)]], ...],
        Meta(min_length=1, max_length=3 * limits.MAX_SEATS_OF_PART),
    ]


class WaypointLink(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One certified version of the whole run, by stage."""

    parts: Annotated[
        tuple[CertifiedPart, ...], Meta(min_length=1, max_length=limits.MAX_CERTIFIED_STAGES)
    ]


class PlanMember(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    peer: PeerText
    counted: Bitmap
    """Ids that this member contributes. A plan counts every id for exactly one member, so a member
    first subtracts every other id in its ledger."""


class Decree(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What closes a step (``decree/``)."""

    attempt: Attempt
    """The attempt whose plan all members were Ready for."""
    digest: Hash32
    """Of the plan and of the sums that it makes."""
    members: Annotated[
        tuple[PeerText, ...], Meta(min_length=1, max_length=limits.MAX_REPLICAS_IN_ROUND)
    ]
    electors: Annotated[tuple[PeerText, ...], Meta(max_length=limits.MAX_ELECTORS)]
    """Of the next step."""
    loss_sum: Finite
    """Of the step's token losses, as its members say."""
    ready: Annotated[tuple[Signature, ...], Meta(max_length=limits.MAX_REPLICAS_IN_ROUND)] = ()
    """The members' signatures of their Readys, in the order of the members."""


class Ballot(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What an elector signs, as a vote or as a promise."""

    stage: StageIndex
    era: Era
    step: StepIndex
    attempt: Attempt
    leader: PeerText
    voted: Attempt
    """The last attempt that it has voted in; 0: none."""
    value: Annotated[bytes, Meta(max_length=32)]
    """Digest of the decree for which; empty: none."""


VoteSignature = Annotated[bytes, Meta(min_length=64, max_length=64)]


class Promise(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, order=True):
    """An elector's signed promise to the leader of an attempt."""

    peer: PeerText
    voted: Attempt
    value: Annotated[bytes, Meta(max_length=32)]
    signature: VoteSignature


Promises = Annotated[tuple[Promise, ...], Meta(max_length=limits.MAX_ELECTORS)]
Signatures = Annotated[
    tuple[tuple[PeerText, VoteSignature], ...], Meta(max_length=limits.MAX_ELECTORS)
]
"""Electors with their signatures of a vote."""
