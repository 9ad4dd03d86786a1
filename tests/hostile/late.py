"""A member that does all its work and returns every gradient late."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.ids import PeerId
from protocol.wire.messages import Backward, Message
from tests.hostile.attack import Distorter, Outgoing


class Late(Distorter):
    """Every gradient waits."""

    late_s = 0.0

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Send gradients later."""
        if isinstance(message, Backward):
            return [(message, payload, self.late_s)]
        return [(message, payload)]
