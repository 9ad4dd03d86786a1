"""A member that sums its segments falsely: everybody applies the sum that it broadcasts."""

from __future__ import annotations

from tests.hostile.attack import Attack

ATTACK = Attack(
    name="false-sum",
    issue="sums",
    what="One of three replicas broadcasts its segments' sums times -10.",
    work="false sums",
    stages=1,
    stage=0,
    honest=2,
)
