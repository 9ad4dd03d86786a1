"""What an amendment changes, in words for people. Pure functions."""

from model_zoo.specs.optimizer import OptimizerSpec
from protocol.amendments.amendment import Amendment


def describe(said: Amendment, steps: int, optimizer: OptimizerSpec) -> str:
    """Return what an amendment changes of the steps and the optimizer of before."""
    changes = [*_length(said.steps, steps), *_schedule(said.optimizer, optimizer)]
    return "; ".join(changes) or "nothing is changed"


def _length(now: int, before: int) -> list[str]:
    if now == before:
        return []
    verb = "extended" if now > before else "shortened"
    return [f"the run is {verb} from {before:,} to {now:,} steps"]


def _schedule(now: OptimizerSpec, before: OptimizerSpec) -> list[str]:
    pairs = (
        ("learning rate", before.lr, now.lr),
        ("final learning rate", before.min_lr, now.min_lr),
        ("warm-up", before.warmup_steps, now.warmup_steps),
        ("schedule", before.schedule, now.schedule),
        ("falls from step", before.falls_from, now.falls_from),
        ("final rate at step", before.decay_steps, now.decay_steps),
    )
    plain = before.falls_from == before.warmup_steps and now.falls_from == now.warmup_steps
    return [
        f"{name} {_number(new)} in place of {_number(old)}"
        for name, old, new in pairs
        if old != new and not (plain and name == "falls from step")
    ]


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
