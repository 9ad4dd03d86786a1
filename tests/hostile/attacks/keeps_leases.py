"""A member of stage 0 that takes microbatches to compute and hands none of them on."""

from __future__ import annotations

from functools import partial

from protocol.wire.messages import Forward
from tests.hostile.attack import Attack, Swallows

ATTACK = Attack(
    name="keeps-leases",
    issue="B4",
    what="A replica of stage 0 keeps every microbatch that it is leased.",
    member=partial(Swallows, Forward),
    stage=0,
)
