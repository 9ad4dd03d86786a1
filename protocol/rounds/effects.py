"""Effects of a round, and those that audits add to it."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class SignCharge:
    """Sign what we charge a member with, and hand the envelope to ``Seat.charged``."""

    kind: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Contributions:
    """A step is closed with contributions of so many others: each could have been audited."""

    count: int


RoundEffect = Effect | Compute | SendPayload | Keep | Fault | CommitTo | SignCharge | Contributions
