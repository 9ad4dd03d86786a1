"""A member of stage 0 that takes microbatches to compute and hands none of them on."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.ids import PeerId
from protocol.wire.messages import Forward, Message
from tests.hostile.attack import Attack, Distorter, Outgoing


class KeepsLeases(Distorter):
    """Asks for work, says that it has it in hand, and sends nothing to the next stage."""

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Swallow every activation."""
        return [] if isinstance(message, Forward) else [(message, payload)]


ATTACK = Attack(
    name="keeps-leases",
    issue="B4",
    what="A replica of stage 0 keeps every microbatch that it is leased.",
    member=KeepsLeases,
    stage=0,
)
