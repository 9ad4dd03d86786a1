"""Effects that only the matching has; the common ones are in ``protocol.effects``."""

from dataclasses import dataclass

from protocol import effects
from protocol.ids import Stage


@dataclass(frozen=True, slots=True)
class Assign:
    """Fetch this stage and serve it; the driver calls ``serving`` on success, else ``lost``."""

    stage: Stage
    reason: str


@dataclass(frozen=True, slots=True)
class Unassign:
    """Stop serving this stage; the seat is free."""

    stage: Stage
    reason: str


Effect = effects.Effect | Assign | Unassign
