"""The optimizer of a run: its numbers, the learning-rate schedule and the clip of one stage."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from model_zoo.specs.description import Ranged

DEFAULT = "adamw"


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """What must be known of an optimizer without opening it.

    Fields:
        vectors: what it keeps between steps, each as long as the parameters, in the order of a
            state.
        rate: its usual learning rate over AdamW's; its usual weight decay is as many times less.
        beta1: its usual one.
        matrix_scratch: working memory, bytes for each element of the largest matrix of a layer; 0:
            it treats no matrix as one.
    """

    vectors: tuple[str, ...]
    rate: float = 1.0
    beta1: float = 0.9
    matrix_scratch: int = 0

    @property
    def by_matrix(self) -> bool:
        """Whether it treats the matrices of layers as such, not number by number."""
        return self.matrix_scratch > 0


OPTIMIZERS = {
    DEFAULT: OptimizerFacts(("first_moment", "second_moment")),
    "muon": OptimizerFacts(("momentum",), rate=3.0, beta1=0.95, matrix_scratch=40),
    "sgd": OptimizerFacts((), rate=100.0, beta1=0.0),
}
"""A new optimizer is a line here and the file of its name in `model_zoo.optimizers`."""
TRAINING = tuple(name for name, facts in OPTIMIZERS.items() if facts.vectors)
"""Those that models are trained with; SGD makes the versions of local rounds alone."""
STABLE_SHARE = 0.8
"""Of a run with `wsd` before the rate falls, where nothing else is chosen."""

_Step = Annotated[int, Meta(ge=0, le=2**40)]
_Share = Annotated[float, Meta(ge=0, lt=1)]


class OptimizerSpec(Ranged, frozen=True):
    """An optimizer, and its learning rate after a linear warm-up.

    Fields:
        lr, min_lr: highest and final learning rate.
        warmup_steps, decay_steps: steps of the linear rise; step at which `min_lr` is reached.
        beta1, beta2, eps, weight_decay: as in AdamW, where the optimizer has them; the decay
            touches matrices only.
        clip: largest norm of the whole model's gradient; 0 switches clipping off.
        name: of an optimizer of the zoo.
        schedule: name of a schedule of the learning rate.
        decay_from: `wsd`: the step at which the rate begins to fall; None: before the last fifth.

    Raises:
        ValueError: a field is out of range.
    """

    lr: Annotated[float, Meta(gt=0, le=10)] = 1e-3
    min_lr: Annotated[float, Meta(ge=0)] = 1e-4
    warmup_steps: _Step = 100
    decay_steps: _Step = 2000
    beta1: _Share = 0.9
    beta2: _Share = 0.99
    eps: Annotated[float, Meta(gt=0, le=1)] = 1e-8
    weight_decay: Annotated[float, Meta(ge=0, le=10)] = 0.1
    clip: Annotated[float, Meta(ge=0, le=1e30)] = 1.0
    name: str = DEFAULT
    schedule: str = "cosine"
    decay_from: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.min_lr <= self.lr:
            raise ValueError("optimizer needs min_lr <= lr")
        if not self.warmup_steps <= self.decay_steps:
            raise ValueError("optimizer needs warmup_steps <= decay_steps")
        if self.name not in OPTIMIZERS:
            known = ", ".join(OPTIMIZERS)
            raise ValueError(f"optimizer {self.name[:40]!r} is unknown; known are {known}")
        self._check_schedule()

    def _check_schedule(self) -> None:
        if self.schedule not in SCHEDULES:
            known = ", ".join(SCHEDULES)
            raise ValueError(f"schedule {self.schedule[:40]!r} is unknown; known are {known}")
        if self.decay_from is not None and self.schedule != "wsd":
            raise ValueError("decay_from belongs to the schedule wsd, and to no other")
        if not self.warmup_steps <= self.falls_from <= self.decay_steps:
            raise ValueError("optimizer needs warmup_steps <= decay_from <= decay_steps")

    @property
    def falls_from(self) -> int:
        """The step at which the rate begins to fall, where it does."""
        if self.schedule != "wsd":
            return self.warmup_steps
        usual = max(self.warmup_steps, round(self.decay_steps * STABLE_SHARE))
        return usual if self.decay_from is None else self.decay_from


def _cosine(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


def _constant(_: float) -> float:
    return 1.0


def _linear(progress: float) -> float:
    return 1 - progress


DEFAULT_SCHEDULE = "cosine"
SCHEDULES: dict[str, Callable[[float], float]] = {
    DEFAULT_SCHEDULE: _cosine,
    "constant": _constant,
    "wsd": _linear,
}
"""What is left of `lr` - `min_lr` at a share of the way from where the rate begins to fall to
`decay_steps`. `wsd` is warm-up, stable, decay: until it falls the rate is `lr`."""


def learning_rate(spec: OptimizerSpec, step: int) -> float:
    """Return the rate of update `step`, counted from 0: linear warm-up, then the schedule's.

    Sources: nanoGPT, `train.py`, `get_lr` (cosine); Hu et al., arXiv 2404.06395, section 4 (wsd).
    """
    if step < spec.warmup_steps:
        return spec.lr * (step + 1) / (spec.warmup_steps + 1)
    start, end = spec.falls_from, spec.decay_steps
    progress = 1.0 if step >= end else max(0, step - start) / max(1, end - start)
    left = SCHEDULES[spec.schedule](progress)
    return spec.min_lr + left * (spec.lr - spec.min_lr)


def stage_clip(spec: OptimizerSpec, stages: int) -> float:
    """Return the largest gradient norm of one stage of `stages`: clip / sqrt(S).

    Stages do not know each other's norms; if each is below this, the model's is below `clip`.
    """
    return spec.clip / math.sqrt(stages)
