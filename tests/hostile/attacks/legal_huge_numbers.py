"""A member that says the largest numbers that a message may hold, as sums of losses and norms."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from protocol.ids import PeerId
from protocol.limits import MAX_NUMBER
from protocol.wire.messages import Message, Ready
from tests.hostile.attack import Attack, Distorter, Outgoing


class LegalHugeNumbers(Distorter):
    """Results computed from its numbers are illegal, so honest peers would send them."""

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Say the largest loss with every Ready."""
        if isinstance(message, Ready) and message.digest != bytes(32):
            message = msgspec.structs.replace(message, loss_sum=MAX_NUMBER)
        return [(message, payload)]


ATTACK = Attack(
    name="legal-huge-numbers",
    issue="B10",
    what="A replica of the last stage says that its losses are 1e30.",
    member=LegalHugeNumbers,
)
