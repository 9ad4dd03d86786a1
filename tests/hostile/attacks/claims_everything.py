"""A member that reports every microbatch of each step as its own work."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from protocol.ids import PeerId
from protocol.wire.messages import LedgerReport, Message
from tests.hostile.attack import Attack, Distorter, Outgoing


class ClaimsEverything(Distorter):
    """What it contributes is of the microbatches that it has."""

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Fill the ledger."""
        if isinstance(message, LedgerReport):
            count = self.manifest.microbatches_per_step
            done = ((1 << count) - 1).to_bytes(-(-count // 8), "little")
            message = msgspec.structs.replace(message, done=done, in_flight=bytes(len(done)))
        return [(message, payload)]


ATTACK = Attack(
    name="claims-everything",
    issue="17",
    what="A replica reports that it has counted every microbatch of each step.",
    member=ClaimsEverything,
)
