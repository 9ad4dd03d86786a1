"""A member of the last stage that takes every microbatch and returns no gradient."""

from __future__ import annotations

from functools import partial

from protocol.wire.messages import Backward
from tests.hostile.attack import Attack, Swallows

ATTACK = Attack(
    name="no-gradients",
    issue="B4",
    what="A replica takes every microbatch, counts it and returns no gradient.",
    member=partial(Swallows, Backward),
)
