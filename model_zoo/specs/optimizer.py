"""The optimizer of a run: its numbers, the learning-rate schedule and the clip of one stage."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """AdamW with warm-up and cosine decay.

    Fields:
        lr, min_lr: highest and final learning rate.
        warmup_steps, decay_steps: steps of the linear rise; step at which `min_lr` is reached.
        beta1, beta2, eps, weight_decay: as in AdamW; the decay touches matrices only.
        clip: largest norm of the whole model's gradient; 0 switches clipping off.

    Raises:
        ValueError: a field is out of range.
    """

    lr: float
    min_lr: float
    warmup_steps: int
    decay_steps: int
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0

    def __post_init__(self) -> None:
        sane = {
            "0 < lr <= 10": 0 < self.lr <= 10,
            "0 <= min_lr <= lr": 0 <= self.min_lr <= self.lr,
            "0 <= warmup_steps <= decay_steps": 0 <= self.warmup_steps <= self.decay_steps,
            "0 <= beta1 < 1": 0 <= self.beta1 < 1,
            "0 <= beta2 < 1": 0 <= self.beta2 < 1,
            "0 < eps <= 1": 0 < self.eps <= 1,
            "0 <= weight_decay <= 10": 0 <= self.weight_decay <= 10,
            "0 <= clip < infinity": 0 <= self.clip < math.inf,
        }
        broken = [rule for rule, holds in sane.items() if not holds]
        if broken:
            raise ValueError(f"optimizer needs {', '.join(broken)}: {self}")


def learning_rate(config: OptimizerConfig, step: int) -> float:
    """The rate of update `step`, counted from 0: linear warm-up, cosine decay, then `min_lr`.

    Source: nanoGPT, `train.py`, `get_lr`.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / (config.warmup_steps + 1)
    if step >= config.decay_steps:
        return config.min_lr
    progress = (step - config.warmup_steps) / (config.decay_steps - config.warmup_steps)
    return config.min_lr + 0.5 * (1 + math.cos(math.pi * progress)) * (config.lr - config.min_lr)


def stage_clip(config: OptimizerConfig, stages: int) -> float:
    """Largest gradient norm of one stage of `stages`: clip / sqrt(S).

    Stages do not know each other's norms; if each is below this, the model's is below `clip`.
    """
    return config.clip / math.sqrt(stages)
