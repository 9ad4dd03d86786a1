"""Bounded field types shared by messages and signed bodies; parsing enforces the ranges."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from protocol import limits
from protocol.ids import PeerId

PeerText = Annotated[PeerId, Meta(min_length=1, max_length=64)]
SwarmText = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
StageIndex = Annotated[int, Meta(ge=0, lt=limits.MAX_STAGES)]
StepIndex = Annotated[int, Meta(ge=0, le=limits.MAX_STEP)]
MicrobatchId = Annotated[int, Meta(ge=0, le=limits.MAX_STEP * limits.MAX_MICROBATCHES_PER_STEP)]
SegmentIndex = Annotated[int, Meta(ge=0, lt=limits.MAX_SEGMENTS)]
Attempt = Annotated[int, Meta(ge=0, le=limits.MAX_ATTEMPT)]
Era = Annotated[int, Meta(ge=0, lt=2**53)]
"""Number of a lineage: every roll-back begins a new one with a higher number."""
ERA_BITS: Final = 32
"""An era is the number of roll-backs, then 32 bits of a hash of its lineage: no two deciders make
the same, nor does one that decides twice."""
MAX_NUMBER: Final = (1 << (53 - ERA_BITS)) - 1
"""The highest number of roll-backs that an era can hold."""
MAX_ERAS_MISSED: Final = 4096
"""A lineage's number may exceed ours by at most this: one lie that is followed does not exhaust the
range, and a swarm rolls back less often while a member is away."""
HIGHEST_NUMBER: Final = MAX_NUMBER - MAX_ERAS_MISSED
"""No run rolls back so often; a member beyond it could soon not roll back any more."""
UnixSeconds = Annotated[int, Meta(ge=0, le=limits.MAX_UNIX_S)]
Count = Annotated[int, Meta(ge=0, lt=2**48)]
Finite = Annotated[float, Meta(ge=-limits.MAX_NUMBER, le=limits.MAX_NUMBER)]
SquaredNorm = Annotated[float, Meta(ge=0, le=limits.MAX_SQUARED_NORM)]
NonNegative = Annotated[float, Meta(ge=0, le=limits.MAX_NUMBER)]
Hash32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
StateHash = Annotated[bytes, Meta(max_length=32)]
"""Hash of the parameters and optimizer state of a version; empty: unknown."""
Signature = Annotated[bytes, Meta(max_length=64)]
"""Of the statement that a message makes (``protocol/evidence``); empty before it is sent."""
Reason = Annotated[str, Meta(max_length=limits.MAX_REASON_CHARS)]
Bitmap = Annotated[bytes, Meta(max_length=limits.MAX_MICROBATCHES_PER_STEP // 8)]
"""Bit i (little-endian within bytes) stands for microbatch t*M + i of the step."""


class Envelope(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A body with its author's signature; anyone can relay it."""

    signer: PeerText
    kind: Annotated[str, Meta(min_length=1, max_length=32)]
    body: Annotated[bytes, Meta(max_length=limits.MAX_ENVELOPE_BODY_BYTES)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]
