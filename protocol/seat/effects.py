"""Effects of a whole seat: those of its parts, and two of its own."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.effects import Effect
from protocol.ids import PeerId
from protocol.pipeline.effects import (
    Committed,
    Compute,
    DropStep,
    Fault,
    GradientAccepted,
    Keep,
    Obstructs,
    Rerouted,
    SendPayload,
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Write the state of the current version for a newcomer, before anything else changes it."""

    version: int
    joiner: PeerId


@dataclass(frozen=True, slots=True)
class Serving:
    """The seat has caught up and takes part from ``version`` on."""

    version: int


SeatEffect = (
    Effect
    | Keep
    | SendPayload
    | DropStep
    | Compute
    | Committed
    | Fault
    | Rerouted
    | GradientAccepted
    | Obstructs
    | Snapshot
    | Serving
)
