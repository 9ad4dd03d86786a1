"""A pipeline of one of three stages, with replicas of one version beside it."""

from collections.abc import Sequence

from protocol.ids import PeerId
from protocol.pipeline.pipeline import Pipeline
from protocol.pipeline.place import Place
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Backward, Forward, Receipt
from tests.support.protocol_examples import peer

ME, A, B, C, D = (peer(number) for number in range(1, 6))
PER_STEP, STEP = 8, 3


class Line:
    """A replica; ``before`` and ``after`` are those of the stages beside its own."""

    def __init__(
        self, before: Sequence[PeerId] = (A, B), after: Sequence[PeerId] = (C, D), stage: int = 1
    ) -> None:
        self.stage, self.made = stage, Pipeline(Place(ME, stage, 3, PER_STEP), STEP)
        beside = {stage - 1: before, stage: (ME,), stage + 1: after}
        self.stages = [
            [Replica(each, STEP, True) for each in beside.get(of, (peer(9),))] for of in range(3)
        ]
        self.made.update_view(SwarmView.of(self.stages), 0.0)

    def forward(self, microbatch: int, sender: PeerId = A, digest: bytes = b"") -> list[object]:
        message = Forward(self.stage, microbatch // PER_STEP, microbatch, again=False)
        return list(self.made.forward(sender, message, digest, 0.0))

    def backward(self, microbatch: int, sender: PeerId, digest: bytes = b"") -> list[object]:
        message = Backward(self.stage, STEP, microbatch)
        return list(self.made.backward(sender, message, digest, 0.0))

    def receipt(self, sender: PeerId, microbatch: int, verdict: str) -> None:
        said = Receipt(self.stage + 1, STEP, microbatch, verdict)
        self.made.deliveries.receipt(sender, said, 0.0)
