"""A member that contributes nothing to the work that it counts, and does not sign that."""

from __future__ import annotations

from tests.hostile.attack import Attack
from tests.hostile.contributions import Multiplied


class Silent(Multiplied):
    """Turned around or silenced, whatever it computed."""

    factor = 0.0
    signs = False


ATTACK = Attack(
    name="contribution-zero",
    issue="robust",
    what="One of four replicas contributes zeros; the rule is centred clipping.",
    member=Silent,
    stages=1,
    stage=0,
    honest=3,
    aggregation="centred-clipping",
)
