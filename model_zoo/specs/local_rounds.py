"""Local rounds: between two versions every replica takes optimizer steps of its own.

A step of the run is then a round. A replica takes an inner step after every few microbatches that
it has counted; what it contributes is how far that has moved its parameters from the version's,
times the microbatches that it counts. So the mean over a round's microbatches is the mean of the
replicas' differences, each weighed by its work. It is made as long as one replica's difference is,
for chance cancels in it (`protocol/rounds/stretch.py`), and moves the version. With one replica
this is the inner optimizer alone.

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

    Raises:
        ValueError: a field is out of range.
    """

    inner_microbatches: Annotated[int, Meta(ge=1, le=65_536)]


OUTER = OptimizerSpec(
    lr=1.0, min_lr=1.0, warmup_steps=0, weight_decay=0.0, clip=0.0, beta1=0.0, name="sgd"
)
"""What makes versions: its gradient is the mean difference."""
