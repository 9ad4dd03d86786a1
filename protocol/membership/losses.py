"""Losses: what the replicas of the last stage say that a version loses, in training and on
held-out text.

Only the last stage computes losses. Each of its replicas publishes its own records: of training
with the steps it closes, of held-out text as the replica at the end of a path
(``protocol.seat.evaluating``). No single number counts where there are others: what is shown agrees
with their median.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Annotated, Final

from msgspec import Meta, Struct

from protocol.ids import PeerId
from protocol.manifest import Evaluation
from protocol.wire.canonical import Canonical
from protocol.wire.fields import StepIndex

PROGRESS: Final = "progress"
HELD_OUT: Final = "held-out"
"""Record kinds."""
MAX_LOSS: Final = 1000.0
"""Nats per token; guessing among 256 bytes costs 5.5."""
RECENT_STEPS: Final = 64
"""Older reports are ignored: they say nothing about the present loss."""
AHEAD_STEPS: Final = 16
"""Steps by which a record may be ahead of the versions known to us."""
SAME: Final = 0.01
"""Relative distance of held-out losses that say the same. Measured: 1e-4 with S8, in the tiny
preset."""


class LossSaid(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body: a version, and its mean token loss in nats: of the step that made it, or on
    held-out text."""

    version: StepIndex
    loss: Annotated[float, Meta(ge=0, le=MAX_LOSS)]


@dataclass(frozen=True, slots=True)
class Believed:
    """What is shown of a version."""

    version: int
    loss: float
    vouchers: int
    """Members whose number agrees with it."""
    claims: int
    """Members that told a number."""


LOSSES: Final = Canonical(LossSaid, "loss")
"""Of records of either kind."""


def is_loss(loss: float) -> bool:
    """Whether a number is a possible loss; NaN and infinity are not."""
    return 0 <= loss <= MAX_LOSS


def agree(loss: float, other: float) -> bool:
    """Whether two losses are compatible: of different microbatches of one step, or of steps close
    to each other."""
    return is_loss(loss) and is_loss(other) and abs(loss - other) <= max(1.0, 0.5 * other)


def vouched(
    said: Mapping[PeerId, LossSaid], versions: Sequence[int], shown: float | None
) -> Believed | None:
    """Return the newest progress that agrees with the median of what replicas of the last stage,
    which are at these versions, have said. Of two reports the one that is nearer to the loss shown
    before decides."""
    reached = median_low(versions) if versions else 0
    least, most = max(1, reached - RECENT_STEPS), reached + AHEAD_STEPS
    recent = [one for one in said.values() if least <= one.version <= most]
    if not versions or not recent:
        return None
    middle = _middle([one.loss for one in recent], shown)
    agreeing = [one for one in recent if agree(one.loss, middle)]
    newest = max(agreeing, key=lambda one: one.version)
    return Believed(newest.version, newest.loss, len(agreeing), len(recent))


def evaluated(
    said: Mapping[PeerId, LossSaid],
    versions: Sequence[int],
    terms: Evaluation,
    steps: int,
    before: float | None,
) -> Believed | None:
    """Return the newest due version's median loss on held-out text, of what replicas of the last
    stage, which are at these versions, have said. The last of all ``steps`` is due as well. What is
    known of the loss otherwise decides between two."""
    most = (median_low(versions) if versions else 0) + AHEAD_STEPS
    due = [
        one
        for one in said.values()
        if (one.version % terms.every == 0 or one.version == steps) and one.version <= most
    ]
    if not versions or not due:
        return None
    newest = max(one.version for one in due)
    losses = [one.loss for one in due if one.version == newest]
    loss = _middle(losses, before)
    agreeing = sum(abs(each - loss) <= SAME * loss for each in losses)
    return Believed(newest, loss, agreeing, len(losses))


def _middle(losses: Sequence[float], known: float | None) -> float:
    """Return the lower median; of two the one that is nearer to the ``known`` loss."""
    if len(losses) == 2 and known is not None:
        return min(sorted(losses), key=lambda loss: abs(loss - known))
    return median_low(losses)
