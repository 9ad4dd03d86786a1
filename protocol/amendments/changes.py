"""What a founder wants to change in a run; ``draft`` makes an amendment of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Changes:
    """What a founder wants; None: as before.

    Fields:
        from_step: the step from which the schedule holds at the earliest.
        lr, min_lr, warmup_steps, decay_steps, schedule, decay_from: as in ``OptimizerSpec``. A new
            rate or schedule ends with the run, unless ``decay_steps`` says otherwise, and the final
            rate keeps its share of the highest.
    """

    steps: int | None = None
    from_step: int | None = None
    lr: float | None = None
    min_lr: float | None = None
    warmup_steps: int | None = None
    decay_steps: int | None = None
    schedule: str | None = None
    decay_from: int | None = None

    @property
    def of_schedule(self) -> bool:
        """Whether the learning rate changes."""
        fields = self.lr, self.min_lr, self.warmup_steps, self.decay_steps, self.schedule
        return any(field is not None for field in (*fields, self.decay_from))
