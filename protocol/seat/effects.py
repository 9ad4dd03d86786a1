"""Effects of a whole seat: those of its parts, and its own."""

from dataclasses import dataclass

from protocol.pipeline.effects import Committed, PipelineEffect
from protocol.rounds.effects import RoundEffect
from protocol.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Write the state of the current version for a newcomer, before anything else changes it."""

    version: int


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """The neighbours are told at once what heartbeats say of this seat."""


@dataclass(frozen=True, slots=True)
class HeldOutLoss:
    """What the last stage has found of a version on one path of held-out text."""

    version: int
    loss: float
    """Mean of the tokens that are learned, nats."""


SeatNews = Committed | HeldOutLoss | Verdict
"""What concerns more than the stage: a step that it has closed, a loss on held-out text, and who is
expelled."""

SeatEffect = PipelineEffect | RoundEffect | SeatNews | Snapshot | StatusChanged
