"""A member of the last stage that takes every microbatch and returns no gradient."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.ids import PeerId
from protocol.wire.messages import Backward, Message
from tests.hostile.attack import Attack, Distorter, Outgoing


class NoGradients(Distorter):
    """Counts what it computes and keeps the gradients to itself."""

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Swallow every gradient."""
        return [] if isinstance(message, Backward) else [(message, payload)]


ATTACK = Attack(
    name="no-gradients",
    issue="B4",
    what="A replica takes every microbatch, counts it and returns no gradient.",
    member=NoGradients,
)
