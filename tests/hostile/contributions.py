"""Contributions of a member that are sound on the wire and another multiple of what it computed."""

from __future__ import annotations

from collections.abc import Sequence

from client.compute.codec import decode, encode
from client.compute.payload import HEADER, seal, sealed_digest
from protocol.ids import PeerId
from protocol.wire.messages import Message, Segment
from tests.hostile.attack import Distorter, Outgoing

FIRST_DIMENSION = 8
"""Its place among the fields of a payload's header."""


class Multiplied(Distorter):
    """Every contribution that it sends is multiplied; the segments that it owns it sums soundly.

    What it commits to is what it has computed. In a run with audits a segment that is not signed is
    as good as none, so it signs what it sends (``signs``), and contradicts itself.
    """

    factor = 1.0
    signs = True

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Multiply what goes to the owner of a segment."""
        if isinstance(message, Segment) and payload:
            shape = (HEADER.unpack_from(payload)[FIRST_DIMENSION],)
            numbers = decode(payload, shape, direction="average") * self.factor
            damaged = encode(numbers, self.manifest.averaging_codec, direction="average")
            seal(damaged)
            payload = bytes(damaged)
            if self.signs and message.signature:
                message = self.signed_segment(message, sealed_digest(payload))
        return [(message, payload)]
