"""Effects of a round, and those that audits add to it."""

from dataclasses import dataclass

from protocol.audit.charges import Charge
from protocol.effects import Effect
from protocol.ids import PeerId
from protocol.pipeline.effects import Compute, Fault, Keep, PayloadKey, SendPayload
from protocol.wire.messages import Commitment


@dataclass(frozen=True, slots=True)
class CommitTo:
    """Make the list of what we have contributed and keep it, sign its digest, and hand the signed
    commitment to ``Seat.committed``; digests are of the payloads that the keys name."""

    peers: tuple[PeerId, ...]
    commitment: Commitment
    microbatches: dict[int, tuple[PayloadKey, ...]]
    segments: tuple[PayloadKey | None, ...]


RoundEffect = Effect | Compute | SendPayload | Keep | Fault | CommitTo | Charge
