"""Effects of a round, and those that audits add to it."""

from dataclasses import dataclass

from protocol.effects import Effect
from protocol.ids import PeerId
from protocol.pipeline.effects import Compute, Fault, Keep, PayloadKey, SendPayload
from protocol.wire.messages import Commitment, Plan


@dataclass(frozen=True, slots=True)
class CommitTo:
    """Make the list of what we have contributed and keep it, sign its digest, and hand the signed
    commitment to ``Seat.committed``; digests are of the payloads that the keys name."""

    peers: tuple[PeerId, ...]
    commitment: Commitment
    microbatches: dict[int, tuple[PayloadKey, ...]]
    segments: tuple[PayloadKey | None, ...]


@dataclass(frozen=True, slots=True)
class Unsigned:
    """A member has contributed something else to us than it has committed to, or has committed to
    something else than the plan asks for."""

    plan: Plan
    member: PeerId


RoundEffect = Effect | Compute | SendPayload | Keep | Fault | CommitTo | Unsigned
