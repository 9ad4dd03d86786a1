"""A record: one author's statement of a kind, valid until it expires or is superseded.

All kinds share one header, so the store and the anti-entropy do not need to know what a record
means. Its key follows from its author, so nobody writes in another's name. Pure functions: clock
readings are arguments.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct

from protocol import limits
from protocol.ids import SwarmId
from protocol.wire.canonical import Canonical
from protocol.wire.envelope import Signer
from protocol.wire.fields import Count, Envelope, UnixSeconds


class Record(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signed body of a record; the highest seq of a (kind, key) wins."""

    subject: Annotated[str, Meta(max_length=32)]
    """What it is about; empty for kinds with one record per author."""
    seq: Count
    issued: UnixSeconds
    ttl_s: Annotated[int, Meta(ge=1, le=int(limits.MAX_ADVERT_TTL_S))]
    body: Annotated[bytes, Meta(max_length=limits.MAX_RECORD_BODY_BYTES)]

    @property
    def expires(self) -> int:
        """Unix seconds after which the record is void."""
        return self.issued + self.ttl_s


def key_of(subject: str, author: str) -> str:
    """Return the key in a store of what an author says about a subject."""
    return f"{subject}/{author}" if subject else author


_bodies = Canonical(Record, "record")
parse_record: Final = _bodies.parse
"""From the body of an envelope, whose signature is checked elsewhere."""


def seal(signer: Signer, kind: str, record: Record, swarm: SwarmId) -> Envelope:
    """Return a record in an envelope signed for one swarm.

    Args:
        signer: holds the author's private key.
        kind: record kind; it is part of what is signed.
        record: the header and body to sign.
        swarm: id of the swarm in which the signature is valid.

    Raises:
        LocalProtocolError: a field out of its range.
    """
    return signer.sign(kind, _bodies.encode(record), swarm)


def staleness(record: Record, wall: float) -> str | None:
    """Return why a record's time is unacceptable at ``wall`` (Unix seconds), or None.

    The issue time may lie up to 120 s in the future (clock skew). A record may be as old as its
    time to live: it was relayed, so its age does not show that its author's clock is wrong.
    """
    if record.issued > wall + limits.MAX_CLOCK_SKEW_S:
        return "from-the-future"
    if record.expires <= wall:
        return "expired"
    return None
