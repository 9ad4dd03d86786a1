"""Boundary tensors of a member that are sound on the wire and of another size than it computed."""

from __future__ import annotations

from collections.abc import Sequence

from client.compute.codec import decode, encode
from client.compute.payload import seal
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.wire.messages import Backward, Forward, Message
from tests.hostile.attack import Distorter, Outgoing


class Scaled(Distorter):
    """Every boundary tensor that it sends is multiplied."""

    factor = 1.0

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Scale activations and gradients; tokens and all other messages stay as they are."""
        if isinstance(message, Forward | Backward):
            payload = scaled(payload, self.factor, self.manifest, message)
        return [(message, payload)]


def scaled(payload: bytes, factor: float, manifest: Manifest, message: Forward | Backward) -> bytes:
    """Return the payload with its tensor times a factor, encoded and sealed again."""
    forward = isinstance(message, Forward)
    tokens = message.tokens_bytes if isinstance(message, Forward) else 0
    shape = (manifest.sequences_per_microbatch, manifest.model.context, manifest.model.width)
    numbers = decode(payload[tokens:], shape, direction="forward" if forward else "backward")
    damaged = encode(
        numbers * factor, manifest.boundary_codec, direction="forward" if forward else "backward"
    )
    seal(damaged)
    return payload[:tokens] + bytes(damaged)
