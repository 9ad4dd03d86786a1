"""A member's progress in a round."""

from __future__ import annotations

import enum


class Progress(enum.Enum):
    """``waiting``: for a plan.

    ``settling``: the worker still has a task that adds to the gradient. ``observing``: the plan
    lists us as a joining peer, we only collect and apply what is broadcast.
    """

    WAITING = "waiting"
    SETTLING = "settling"
    CONTRIBUTING = "contributing"
    EXCHANGING = "exchanging"
    READY = "ready"
    OBSERVING = "observing"
    APPLYING = "applying"
