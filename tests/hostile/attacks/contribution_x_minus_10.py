"""A member that contributes the opposite of what it computed, ten times as large."""

from __future__ import annotations

from tests.hostile.attack import Attack
from tests.hostile.contributions import Multiplied


class Opposed(Multiplied):
    """Turned around or silenced, whatever it computed."""

    factor = -10.0


ATTACK = Attack(
    name="contribution-x-minus-10",
    issue="robust",
    what="One of four replicas multiplies its contributions by -10; the rule is centred clipping.",
    member=Opposed,
    stages=1,
    stage=0,
    honest=3,
    aggregation="centred-clipping",
)
