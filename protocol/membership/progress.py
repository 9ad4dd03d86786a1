"""Progress records: the swarm's step and loss, as reported by the replicas of the last stage.

Only the last stage computes the loss. Each of its replicas publishes its own record. A single
report does not count where there are others: the loss shown agrees with the median of all reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct

from protocol.ids import PeerId
from protocol.membership.record import Record
from protocol.wire.canonical import Canonical
from protocol.wire.fields import Count, StepIndex, UnixSeconds

PROGRESS: Final = "progress"
"""Record kind; the key is the author's peer id, the seq rises with time."""
MAX_LOSS: Final = 1000.0
"""Nats per token; guessing among 256 bytes costs 5.5."""
RECENT_STEPS: Final = 64
"""Older reports are ignored: they say nothing about the present loss."""
AHEAD_STEPS: Final = 16
"""Steps by which a record may be ahead of the versions known to us."""

Loss = Annotated[float, Meta(ge=0, le=MAX_LOSS)]


class Progress(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One committed step."""

    step: StepIndex
    loss: Loss
    """Mean token loss of the step, nats."""
    tokens: Count
    """Tokens trained on since the swarm began."""
    wall: UnixSeconds


_bodies = Canonical(Progress, "progress")


def encode_progress(progress: Progress) -> bytes:
    """Return the canonical encoding; raises ``LocalProtocolError`` for a field out of range."""
    return _bodies.encode(progress)


def parse_progress(record: Record, signer: PeerId) -> Progress:
    """Check a progress record.

    Raises:
        RemoteProtocolError: malformed, not canonical, or in another's name.
    """
    return _bodies.parse_own(record.body, record.key, signer)


def is_loss(loss: float) -> bool:
    """Whether a number is a possible loss; NaN and infinity are not."""
    return 0 <= loss <= MAX_LOSS


def agree(loss: float, other: float) -> bool:
    """Whether two losses are compatible: of different microbatches of one step, or of steps close
    to each other."""
    return is_loss(loss) and is_loss(other) and abs(loss - other) <= max(1.0, 0.5 * other)


def vouched(
    said: Mapping[PeerId, Progress], versions: Sequence[int], shown: float | None
) -> tuple[Progress, int] | None:
    """Return the newest progress that agrees with the median report, and how many reports agree.

    Args:
        said: progress reported by each replica of the last stage.
        versions: version of each replica of the last stage.
        shown: the loss shown before, nats per token; it decides if there are only two reports.
    """
    if not versions:
        return None
    reached = sorted(versions)[(len(versions) - 1) // 2]
    recent = [
        progress
        for progress in said.values()
        if reached - RECENT_STEPS <= progress.step + 1 <= reached + AHEAD_STEPS
    ]
    if not recent:
        return None
    losses = sorted(progress.loss for progress in recent)
    middle = losses[(len(losses) - 1) // 2]
    if len(losses) == 2 and shown is not None:
        middle = min(losses, key=lambda loss: abs(loss - shown))
    agreeing = [progress for progress in recent if agree(progress.loss, middle)]
    return max(agreeing, key=lambda progress: progress.step), len(agreeing)
