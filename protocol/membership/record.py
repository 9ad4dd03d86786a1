"""A record: one author's statement of a kind, valid until it expires or is superseded.

All kinds share one header, so the store and the anti-entropy do not need to know what a record
means. Pure functions.
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

    seq: Count
    expires: UnixSeconds
    """Then it is void."""
    body: Annotated[bytes, Meta(max_length=limits.MAX_RECORD_BODY_BYTES)]


_bodies = Canonical(Record, "record")
parse_record: Final = _bodies.parse
"""From the body of an envelope, whose signature is checked elsewhere."""


def seal(signer: Signer, kind: str, record: Record, swarm: SwarmId) -> Envelope:
    """Return a record of a kind in an envelope that is valid in one swarm.

    Raises:
        LocalProtocolError: a field out of its range.
    """
    return signer.sign(kind, _bodies.encode(record), swarm)
