"""A member that holds a stage and answers every microbatch with busy."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from protocol.ids import PeerId
from protocol.wire.messages import Message, Receipt
from tests.hostile.attack import Attack, Distorter, Outgoing


class Refuses(Distorter):
    """Turns every accepted microbatch away."""

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Say busy in place of accepted and known."""
        if isinstance(message, Receipt) and message.verdict in ("accepted", "known"):
            message = msgspec.structs.replace(message, verdict="busy")
        return [(message, payload)]


ATTACK = Attack(
    name="refuses",
    issue="B4",
    what="A replica answers busy to every microbatch that it is sent.",
    member=Refuses,
)
