"""The optimizer of a run: its numbers, the learning-rate schedule and the clip of one stage."""

import math

import msgspec
from msgspec import Struct

DEFAULT = "adamw"
OPTIMIZERS: dict[str, tuple[str, ...]] = {
    DEFAULT: ("first_moment", "second_moment"),
}
"""The vectors, each as long as the parameters, that every optimizer keeps between steps, in the
order of a state. A new optimizer is a line here and the file of its name in `model_zoo.optimizers`.
"""

_MAX_STEPS = 2**40


class OptimizerSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """An optimizer with linear warm-up and cosine decay.

    Fields:
        lr, min_lr: highest and final learning rate.
        warmup_steps, decay_steps: steps of the linear rise; step at which `min_lr` is reached.
        beta1, beta2, eps, weight_decay: as in AdamW, where the optimizer has them; the decay
            touches matrices only.
        clip: largest norm of the whole model's gradient; 0 switches clipping off.
        kind: name of an optimizer of the zoo; left out for AdamW.

    Raises:
        ValueError: a field is out of range.
    """

    lr: float = 1e-3
    min_lr: float = 1e-4
    warmup_steps: int = 100
    decay_steps: int = 2000
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    kind: str | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        sane = {
            "0 < lr <= 10": 0 < self.lr <= 10,
            "0 <= min_lr <= lr": 0 <= self.min_lr <= self.lr,
            "0 <= warmup_steps <= decay_steps": 0 <= self.warmup_steps <= self.decay_steps,
            f"decay_steps <= {_MAX_STEPS}": self.decay_steps <= _MAX_STEPS,
            "0 <= beta1 < 1": 0 <= self.beta1 < 1,
            "0 <= beta2 < 1": 0 <= self.beta2 < 1,
            "0 < eps <= 1": 0 < self.eps <= 1,
            "0 <= weight_decay <= 10": 0 <= self.weight_decay <= 10,
            "0 <= clip <= 1e30": 0 <= self.clip <= 1e30,
        }
        broken = [rule for rule, holds in sane.items() if not holds]
        if broken:
            raise ValueError(f"optimizer needs {', '.join(broken)}")
        if self.kind == DEFAULT:  # one run, one spelling
            raise ValueError(f"kind {DEFAULT} is what is meant when it is left out: leave it out")
        if self.name not in OPTIMIZERS:
            known = ", ".join(OPTIMIZERS)
            raise ValueError(f"optimizer {self.name[:40]!r} is unknown; known are {known}")

    @property
    def name(self) -> str:
        """Name of the optimizer in the zoo."""
        return DEFAULT if self.kind is msgspec.UNSET else self.kind


def learning_rate(spec: OptimizerSpec, step: int) -> float:
    """Return the rate of update `step`, counted from 0: linear warm-up, cosine decay, `min_lr`.

    Source: nanoGPT, `train.py`, `get_lr`.
    """
    if step < spec.warmup_steps:
        return spec.lr * (step + 1) / (spec.warmup_steps + 1)
    if step >= spec.decay_steps:
        return spec.min_lr
    progress = (step - spec.warmup_steps) / (spec.decay_steps - spec.warmup_steps)
    return spec.min_lr + 0.5 * (1 + math.cos(math.pi * progress)) * (spec.lr - spec.min_lr)


def stage_clip(spec: OptimizerSpec, stages: int) -> float:
    """Return the largest gradient norm of one stage of `stages`: clip / sqrt(S).

    Stages do not know each other's norms; if each is below this, the model's is below `clip`.
    """
    return spec.clip / math.sqrt(stages)
