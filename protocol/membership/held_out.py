"""Held-out records: what the replicas of the last stage say a version loses on held-out text.

Each record is one path's number (``protocol.seat.evaluating``), signed by the replica of the last
stage at its end. No single number counts where there are others: what is shown of a version is the
median of all that were told of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from protocol.ids import PeerId
from protocol.manifest import Evaluation
from protocol.membership.progress import AHEAD_STEPS, Loss
from protocol.membership.record import Record
from protocol.wire.canonical import Canonical
from protocol.wire.fields import StepIndex, UnixSeconds

HELD_OUT: Final = "held-out"
"""Record kind; the key is the author's peer id, the seq rises with time."""
SAME: Final = 0.01
"""Relative distance of numbers that say the same. Measured: 1e-4 with S8, in the tiny preset."""


class HeldOutSaid(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One version's loss on one path."""

    version: StepIndex
    loss: Loss
    """Mean of the learned tokens, nats."""
    wall: UnixSeconds


@dataclass(frozen=True, slots=True)
class Believed:
    """What is shown of a version."""

    version: int
    loss: float
    vouchers: int
    """Members whose number is this one."""
    claims: int
    """Members that told a number of this version."""


_bodies = Canonical(HeldOutSaid, "held-out")


def encode_held_out(said: HeldOutSaid) -> bytes:
    """Return the canonical encoding; raises ``LocalProtocolError`` for a field out of range."""
    return _bodies.encode(said)


def parse_held_out(record: Record, signer: PeerId) -> HeldOutSaid:
    """Check a held-out record.

    Raises:
        RemoteProtocolError: malformed, not canonical, or in another's name.
    """
    return _bodies.parse_own(record.body, record.key, signer)


def believed(
    said: Mapping[PeerId, HeldOutSaid],
    versions: Sequence[int],
    terms: Evaluation,
    steps: int,
    before: float | None,
) -> Believed | None:
    """Return the newest version's median number, and how many agree with it.

    Args:
        said: what each replica of the last stage has told last.
        versions: version of each replica of the last stage.
        terms: which versions are evaluated.
        steps: the run's last version, which is evaluated as well.
        before: what is known of the loss otherwise, nats; it decides between two.
    """
    if not versions:
        return None
    reached = sorted(versions)[(len(versions) - 1) // 2]
    known = [
        one
        for one in said.values()
        if (one.version % terms.every == 0 or one.version == steps)
        and one.version <= reached + AHEAD_STEPS
    ]
    newest = max((one.version for one in known), default=None)
    if newest is None:
        return None
    losses = sorted(one.loss for one in known if one.version == newest)
    loss = losses[(len(losses) - 1) // 2]
    if len(losses) == 2 and before is not None:
        loss = min(losses, key=lambda each: abs(each - before))
    agreeing = sum(abs(each - loss) <= SAME * loss for each in losses)
    return Believed(newest, loss, agreeing, len(losses))
