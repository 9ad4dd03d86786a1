"""A replica of the last stage that says losses which cannot be, as a member and as a leader."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from protocol.ids import PeerId
from protocol.wire.messages import Commit, Message, Ready
from tests.hostile.attack import Attack, Distorter, Outgoing

LIES = (0.0, 5e26, 9e29)


class FalseLosses(Distorter):
    """Everything else that it does is right."""

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Say one lie after the other in place of sums."""
        if isinstance(message, Ready | Commit):
            lie = LIES[message.step % len(LIES)]
            message = msgspec.structs.replace(message, loss_sum=lie)
        return [(message, payload)]


ATTACK = Attack(
    name="false-losses",
    issue="B10",
    what="A replica of the last stage says losses of 0 and 5e26, also when it leads.",
    member=FalseLosses,
)
