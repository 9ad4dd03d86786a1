"""Members whose tensors are sound on the wire, finite, and not what they have computed."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from client.compute.payload import SEAL_BYTES, seal
from model_zoo.specs.codec import CODECS
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.wire.messages import Backward, Forward, Message, Segment
from tests.hostile.attack import Attack, Distorter, Outgoing
from tests.support.codecs import decode, encode

LARGE = 1e13


class ScaledBoundary(Distorter):
    """Every boundary tensor that it sends is multiplied; tokens stay as they are."""

    def __init__(self, factor: float, me: PeerId, manifest: Manifest) -> None:
        super().__init__(me, manifest)
        self._factor = factor

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Scale activations and gradients."""
        if isinstance(message, Forward | Backward):
            payload = self._scaled(payload, message)
        return [(message, payload)]

    def _scaled(self, payload: bytes, message: Forward | Backward) -> bytes:
        way = "forward" if isinstance(message, Forward) else "backward"
        batch, model = self.manifest.sequences_per_microbatch, self.manifest.model
        tokens = 2 * batch * (model.context + 1) if isinstance(message, Forward) else 0
        shape = (batch, model.context, model.width)
        codec = self.manifest.boundary_codec
        numbers = decode(payload[tokens:], shape, codec, way) * self._factor
        damaged = encode(numbers, codec, way)
        seal(damaged)
        return payload[:tokens] + bytes(damaged)


class Contributing(Distorter):
    """What it contributes is changed, and what it commits to is what it has computed; the segments
    that it owns it sums soundly."""

    def __init__(self, change: Callable[[Tensor], Tensor], me: PeerId, manifest: Manifest) -> None:
        super().__init__(me, manifest)
        self._change = change

    def outgoing(self, peer: PeerId, message: Message, payload: bytes) -> Sequence[Outgoing]:
        """Change what goes to the owner of a segment."""
        if isinstance(message, Segment) and payload:
            codec = self.manifest.averaging_codec
            size = round((len(payload) - SEAL_BYTES) / CODECS[codec].bytes_per_number)
            numbers = self._change(decode(payload, (size,), codec, "average"))
            damaged = encode(numbers, codec, "average")
            seal(damaged)
            payload = bytes(damaged)
        return [(message, payload)]


def enormous(numbers: Tensor) -> Tensor:
    """As large as the attack says, with the signs that they should have."""
    return numbers * (LARGE / max(float(numbers.abs().max()), 1e-20))


def of_four(name: str, what: str, factor: float) -> Attack:
    """Return an attack in a stage of four whose contributions are multiplied."""
    return Attack(
        name=name,
        issue="robust",
        what=f"One of four replicas {what}; the rule is centred clipping.",
        member=partial(Contributing, lambda numbers: numbers * factor),
        stages=1,
        stage=0,
        honest=3,
        aggregation="centred-clipping",
    )


ATTACKS = (
    Attack(
        name="near-zero-boundary",
        issue="B3",
        what="A replica divides every boundary tensor that it sends by 2^40.",
        member=partial(ScaledBoundary, 2.0**-40),
    ),
    Attack(
        name="huge-boundary",
        issue="B3",
        what="A replica multiplies every boundary tensor that it sends by 2^30.",
        member=partial(ScaledBoundary, 2.0**30),
    ),
    Attack(
        name="turned-boundary",
        issue="17",
        what="A replica turns every boundary tensor that it sends round, and lists the right one.",
        member=partial(ScaledBoundary, -1.0),
        audit=3,
    ),
    Attack(
        name="huge-contribution",
        issue="B4",
        what="A replica contributes numbers of 1e13 to every sum of its stage.",
        member=partial(Contributing, enormous),
    ),
    of_four("contribution-x-minus-1", "turns its contributions around", -1.0),
    of_four("contribution-x-minus-10", "multiplies its contributions by -10", -10.0),
    of_four("contribution-zero", "contributes zeros", 0.0),
)
