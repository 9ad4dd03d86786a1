"""Local rounds: between two versions every replica takes optimizer steps of its own.

A step of the run is then a round. A replica takes an inner step after every few microbatches that
it has counted; what it contributes is how far that has moved its parameters from the version's,
times the microbatches that it counts. So the mean over a round's microbatches is the mean of the
replicas' differences, each weighed by its work. It is made as long as one replica's difference is,
for chance cancels in it (`protocol/rounds/stretch.py`); the outer optimizer moves the version by
it. With one replica, an outer rate of 1 and no outer momentum this is the inner optimizer alone.

Sources: Douillard et al., arXiv 2311.08105 (DiLoCo); Therien et al., arXiv 2505.23725 (Muon inside,
two bits outside).
"""

from typing import Annotated

from msgspec import Meta

from model_zoo.specs.description import Ranged
from model_zoo.specs.optimizer import OptimizerSpec


class LocalRounds(Ranged, frozen=True):
    """How replicas step between two versions.

    Fields:
        inner_microbatches: of one replica, after which it takes an inner step.
        outer_lr: of the mean difference, this much is taken over.
        outer_momentum: of Nesterov's momentum on the mean differences; 0: none is kept.

    Raises:
        ValueError: a field is out of range.
    """

    inner_microbatches: Annotated[int, Meta(ge=1, le=65_536)]
    outer_lr: Annotated[float, Meta(gt=0, le=2)] = 1.0
    outer_momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0

    @property
    def outer(self) -> OptimizerSpec:
        """The optimizer that makes versions: its gradient is the mean difference."""
        return OptimizerSpec(
            name="nesterov" if self.outer_momentum else "sgd",
            lr=self.outer_lr,
            min_lr=self.outer_lr,
            warmup_steps=0,
            schedule="constant",
            beta1=self.outer_momentum,
            weight_decay=0.0,
            clip=0.0,
        )
