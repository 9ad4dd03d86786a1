"""A member that has its only sibling ban it, and is an honest neighbour to everybody else."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.ids import PeerId
from protocol.wire.messages import Message, Segment
from tests.hostile.attack import Attack, Distorter, Outgoing

MALFORMED = 6
"""At 20 points each, more than a ban takes."""


class BannedBySibling(Distorter):
    """Only siblings get segments, so only they see what is malformed."""

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Say six segments that are too large before each sound one."""
        if not isinstance(message, Segment):
            return [(message, payload)]
        return [(message, payload * 3)] * MALFORMED + [(message, payload)]  # more than a stage has


ATTACK = Attack(
    name="banned-by-sibling",
    issue="B4",
    what="A replica sends its only sibling six malformed segments and works for all others.",
    member=BannedBySibling,
)
