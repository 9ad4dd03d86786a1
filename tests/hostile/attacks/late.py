"""Members that do all their work, and hand it on late or never."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.wire.messages import Backward, Forward, Message
from tests.hostile.attack import Attack, Distorter, Outgoing, Swallows


class Late(Distorter):
    """Every gradient waits, below every deadline."""

    def __init__(self, late_s: float, me: PeerId, manifest: Manifest) -> None:
        super().__init__(me, manifest)
        self._late_s = late_s

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Send gradients later."""
        if isinstance(message, Backward):
            return [(message, payload, self._late_s)]
        return [(message, payload)]


ATTACKS = (
    Attack(
        name="sleeper-1s",
        issue="B4",
        what="A replica returns every gradient 1 s late.",
        member=partial(Late, 1.0),
    ),
    Attack(
        name="sleeper-4s",
        issue="B4",
        what="A replica returns every gradient 4 s late.",
        member=partial(Late, 4.0),
    ),
    Attack(
        name="no-gradients",
        issue="B4",
        what="A replica takes every microbatch, counts it and returns no gradient.",
        member=partial(Swallows, Backward),
    ),
    Attack(
        name="keeps-leases",
        issue="B4",
        what="A replica of stage 0 keeps every microbatch that it is leased.",
        member=partial(Swallows, Forward),
        stage=0,
    ),
)
