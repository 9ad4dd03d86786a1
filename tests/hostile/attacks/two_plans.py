"""A leader that tells one member of its round another plan than the other one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from protocol.ids import PeerId
from protocol.wire.messages import Message, Plan
from tests.hostile.attack import Attack, Bounds, Distorter, Outgoing


class TwoPlans(Distorter):
    """Names other electors to each second member: in a split another member decides."""

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Sign another plan of the same attempt for the member of highest id."""
        if isinstance(message, Plan) and peer == max(
            member.peer for member in message.members if member.peer != self.me
        ):
            electors = [*message.electors[1:], *message.electors[:1]]
            message = self.signed(msgspec.structs.replace(message, electors=electors))
        return [(message, payload)]


ATTACK = Attack(
    name="two-plans",
    issue="17.1",
    what="A leader of three signs two plans of one attempt, and sends each member one.",
    member=TwoPlans,
    honest=5,
    bounds=Bounds(shut_out_by=5),
)
