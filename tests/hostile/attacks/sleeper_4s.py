"""A member of the last stage that returns every gradient 4 s late, below every deadline."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.ids import PeerId
from protocol.wire.messages import Backward, Message
from tests.hostile.attack import Attack, Distorter, Outgoing

LATE_S = 4.0


class Sleeper(Distorter):
    """Does all the work and is late with it."""

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Send gradients later."""
        if isinstance(message, Backward):
            return [(message, payload, LATE_S)]
        return [(message, payload)]


ATTACK = Attack(
    name="sleeper-4s",
    issue="B4",
    what="A replica returns every gradient 4 s late.",
    member=Sleeper,
)
