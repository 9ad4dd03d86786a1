"""A member that names another digest than the others for what a round is about to apply."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from protocol.ids import PeerId
from protocol.wire.messages import Message, Ready
from tests.hostile.attack import Attack, Distorter, Outgoing


class WrongDigest(Distorter):
    """Is Ready for gradients that nobody has."""

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Replace the digest of every Ready."""
        if isinstance(message, Ready):
            message = self.signed(msgspec.structs.replace(message, digest=b"x" * 32))
        return [(message, payload)]


ATTACK = Attack(
    name="wrong-digest",
    issue="B4",
    what="A replica is Ready with a digest that no sibling has.",
    member=WrongDigest,
)
