"""Local rounds: between two versions every replica takes optimizer steps of its own.

A step of the run is then a round. A replica takes an inner step after every few microbatches that
it has counted; what it contributes is how far that has moved its parameters from the version's,
times the microbatches that it counts. So the mean over a round's microbatches is the mean of the
replicas' differences, each weighed by its work, and the outer optimizer moves the version by it.
With one replica, an outer rate of 1 and no outer momentum this is the inner optimizer alone.

Sources: Douillard et al., arXiv 2311.08105 (DiLoCo); Therien et al., arXiv 2505.23725 (Muon inside,
two bits outside).
"""

from model_zoo.specs.description import Description
from model_zoo.specs.optimizer import OptimizerSpec

_MAX_INNER = 65_536


class LocalRounds(Description, frozen=True):
    """How replicas step between two versions.

    Fields:
        inner_microbatches: of one replica, after which it takes an inner step.
        outer_lr: of the mean difference, this much is taken over.
        outer_momentum: of Nesterov's momentum on the mean differences; 0: none is kept.

    Raises:
        ValueError: a field is out of range.
    """

    inner_microbatches: int
    outer_lr: float = 1.0
    outer_momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        sane = {
            f"1 <= inner_microbatches <= {_MAX_INNER}": 1 <= self.inner_microbatches <= _MAX_INNER,
            "0 < outer_lr <= 2": 0 < self.outer_lr <= 2,
            "0 <= outer_momentum < 1": 0 <= self.outer_momentum < 1,
        }
        broken = [rule for rule, holds in sane.items() if not holds]
        if broken:
            raise ValueError(f"local rounds need {', '.join(broken)}")

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
