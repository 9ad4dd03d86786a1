"""What a founder wants to change in a run; ``draft`` makes an amendment of it.

The terminal interface knows it, so it imports no cryptography.
"""

from dataclasses import dataclass, fields
from typing import Any


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
    def of_schedule(self) -> dict[str, Any]:
        """What changes of the optimizer, by field."""
        beside = "steps", "from_step"
        given = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: value for name, value in given if name not in beside and value is not None}
