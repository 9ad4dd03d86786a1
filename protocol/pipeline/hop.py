"""One microbatch at one replica: where it stands between its arrival and the ledger.

    queued -> forward -> sent -> returned -> done          (stages before the last)
    queued -> loss -> done                                 (last stage)

``forward``, ``loss`` and ``backward`` mean: with the worker now. A hop never goes backwards; what
must be repeated (a re-sent boundary) is the business of ``delivery``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from protocol.ids import PeerId


class Phase(enum.Enum):
    """Progress of a microbatch through one stage."""

    QUEUED = "queued"
    FORWARD = "forward"
    SENT = "sent"
    RETURNED = "returned"
    BACKWARD = "backward"
    DONE = "done"
    """Its weight gradient is in our accumulator: it is in the ledger."""


@dataclass(slots=True)
class Hop:
    """A microbatch of one step at this replica."""

    step: int
    microbatch: int
    phase: Phase
    upstreams: dict[PeerId, int] = field(default_factory=dict)
    """Return addresses of the gradient, each with the attempt under which it last sent the
    microbatch; empty at stage 0, more than one while two replicas work on it."""
    giver: PeerId | None = None
    """The sender of the tensor being computed on: the boundary, then its gradient; None at stage 0,
    which reads its own samples."""
    source: PeerId | None = None
    """The sender of the boundary; None at stage 0."""
    again: bool = False
    tokens_bytes: int = 0
    loss_sum: float = 0.0
