"""A member whose contributions to its stage's sums are finite, sound on the wire and enormous."""

from __future__ import annotations

from collections.abc import Sequence

from client.compute.codec import decode, encode
from client.compute.payload import HEADER, seal
from protocol.ids import PeerId
from protocol.wire.messages import Message, Segment
from tests.hostile.attack import Attack, Distorter, Outgoing

LARGE = 1e13
FIRST_DIMENSION = 8
"""Its place among the fields of a payload's header."""


class HugeContribution(Distorter):
    """Its part of every sum is as large as the attack says, with the signs that it should have."""

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Scale what goes to the owner of a segment."""
        if isinstance(message, Segment) and payload:
            payload = self._scaled(payload)
        return [(message, payload)]

    def _scaled(self, payload: bytes) -> bytes:
        shape = (HEADER.unpack_from(payload)[FIRST_DIMENSION],)
        numbers = decode(payload, shape, direction="average")
        numbers *= LARGE / max(float(numbers.abs().max()), 1e-20)
        damaged = encode(numbers, self.manifest.averaging_codec, direction="average")
        seal(damaged)
        return bytes(damaged)


ATTACK = Attack(
    name="huge-contribution",
    issue="B4",
    what="A replica contributes numbers of 1e13 to every sum of its stage.",
    member=HugeContribution,
)
