"""A member whose boundary tensors are finite, sound on the wire and far out of range."""

from __future__ import annotations

from tests.hostile.attack import Attack
from tests.hostile.boundaries import Scaled


class Huge(Scaled):
    """Out of range, whatever it computed."""

    factor = 2.0**30


ATTACK = Attack(
    name="huge-boundary",
    issue="B3",
    what="A replica multiplies every boundary tensor that it sends by 2^30.",
    member=Huge,
)
