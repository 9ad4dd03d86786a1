"""The progress record: how far the swarm is, said by the replicas that compute the loss."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from protocol.membership.record import Record, UnixSeconds
from protocol.wire.canonical import Canonical
from protocol.wire.fields import Count, Finite, StepIndex

PROGRESS: Final = "progress"
PROGRESS_KEY: Final = "swarm"


class Progress(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One committed step; the record's seq is the step, so the newest step wins."""

    step: StepIndex
    loss: Finite
    """Mean token loss of the step, nats."""
    tokens: Count
    """Tokens trained on since the swarm began."""
    wall: UnixSeconds


_bodies = Canonical(Progress, "progress")


def encode_progress(progress: Progress) -> bytes:
    """Return the canonical encoding; raises ``LocalProtocolError`` for a field out of range."""
    return _bodies.encode(progress)


def parse_progress(record: Record) -> Progress:
    """Check a progress record.

    Raises:
        RemoteProtocolError: malformed, not canonical, another key, or seq is not the step.
    """
    progress = _bodies.parse(record.body)
    if record.key != PROGRESS_KEY or record.seq != progress.step:
        raise _bodies.malformed("header and body differ")
    return progress
