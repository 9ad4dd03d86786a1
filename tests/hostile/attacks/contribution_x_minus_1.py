"""A member that contributes the opposite of what it computed."""

from __future__ import annotations

from tests.hostile.attack import Attack
from tests.hostile.contributions import Multiplied


class TurnedAround(Multiplied):
    """Turned around or silenced, whatever it computed."""

    factor = -1.0


ATTACK = Attack(
    name="contribution-x-minus-1",
    issue="robust",
    what="One of four replicas turns its contributions around; the rule is centred clipping.",
    member=TurnedAround,
    stages=1,
    stage=0,
    honest=3,
    aggregation="centred-clipping",
)
