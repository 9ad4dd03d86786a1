"""A member of the last stage that returns every gradient 4 s late, below every deadline."""

from __future__ import annotations

from tests.hostile.attack import Attack
from tests.hostile.late import Late


class Sleeper(Late):
    """Late by less than a deadline."""

    late_s = 4.0


ATTACK = Attack(
    name="sleeper-4s",
    issue="B4",
    what="A replica returns every gradient 4 s late.",
    member=Sleeper,
)
