"""A member that says everything about a large step's round many times over."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.ids import PeerId
from protocol.wire.messages import LedgerReport, Message, Plan
from tests.hostile.attack import Attack, Distorter, Outgoing

TIMES = 50


class BigPlan(Distorter):
    """Plans and ledgers of many microbatches, each of them again and again."""

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Repeat what is as long as the step has microbatches."""
        return [(message, payload)] * (TIMES if isinstance(message, Plan | LedgerReport) else 1)


ATTACK = Attack(
    name="big-plan",
    issue="B9",
    what="A replica says every plan and ledger of steps of 64 microbatches fifty times.",
    member=BigPlan,
    microbatches=64,
)
