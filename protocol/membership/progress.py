"""The progress record: how far the swarm is, said by the replicas that compute the loss."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.membership.record import Record, UnixSeconds
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


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Progress)


def encode_progress(progress: Progress) -> bytes:
    """Return the canonical encoding; raises ``LocalProtocolError`` for a field out of range."""
    try:
        return _encoder.encode(_decoder.decode(_encoder.encode(progress)))
    except msgspec.MsgspecError as error:
        raise LocalProtocolError(f"our own progress: {error}") from error


def parse_progress(record: Record) -> Progress:
    """Check a progress record.

    Raises:
        RemoteProtocolError: malformed, not canonical, another key, or seq is not the step.
    """
    try:
        progress = _decoder.decode(record.body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RemoteProtocolError("progress-malformed", str(error), penalty=20) from error
    exact = _encoder.encode(progress) == record.body
    if not exact or record.key != PROGRESS_KEY or record.seq != progress.step:
        raise RemoteProtocolError("progress-malformed", "header and body differ", penalty=20)
    return progress
