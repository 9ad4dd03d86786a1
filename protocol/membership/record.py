"""A record: what one author says under (kind, key), until it expires or says something newer.

The header is the same for every kind, so that the store and the anti-entropy need to know nothing
of what a record means. Pure functions: the clocks' values are passed in.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from protocol import limits
from protocol.ids import SwarmId
from protocol.wire.canonical import Canonical
from protocol.wire.envelope import Signer
from protocol.wire.fields import Count, Envelope

MAX_RECORD_BODY_BYTES: Final = limits.MAX_ENVELOPE_BODY_BYTES - 256
"""What a body may have beside its header inside an envelope."""

UnixSeconds = Annotated[int, Meta(ge=0, le=2**40)]


class Record(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signed body of a record's envelope; of two with one (kind, key) the higher seq holds."""

    key: Annotated[str, Meta(min_length=1, max_length=96)]
    seq: Count
    issued: UnixSeconds
    ttl_s: Annotated[int, Meta(ge=1, le=int(limits.MAX_ADVERT_TTL_S))]
    body: Annotated[bytes, Meta(max_length=MAX_RECORD_BODY_BYTES)]

    @property
    def expires(self) -> int:
        """Unix seconds after which the record says nothing any more."""
        return self.issued + self.ttl_s


_bodies = Canonical(Record, "record")


def seal(signer: Signer, kind: str, record: Record, swarm: SwarmId) -> Envelope:
    """Sign a record for a swarm.

    Raises:
        LocalProtocolError: a field out of its range.
    """
    return signer.sign(kind, _bodies.encode(record), swarm)


def open_record(envelope: Envelope) -> Record:
    """Parse the record in an envelope; the signature is checked elsewhere.

    Raises:
        RemoteProtocolError: ``record-malformed``, also for an encoding that is not canonical.
    """
    return _bodies.parse(envelope.body)


def staleness(record: Record, wall: float) -> str | None:
    """Say why a record's time does not fit our clock, or None if it does.

    A record may come from up to 120 s ahead (clock skew). It may be as old as its time to live:
    it was relayed, so age alone says nothing of its author's clock.
    """
    if record.issued > wall + limits.MAX_CLOCK_SKEW_S:
        return "from-the-future"
    if record.expires <= wall:
        return "expired"
    return None
