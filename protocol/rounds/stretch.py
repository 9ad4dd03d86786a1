"""How far a version goes by the mean of a local round.

What the replicas do not share cancels in their mean. The outer step therefore goes as far as one of
them has, in the direction of the mean. Where they agree this changes nothing; where they share
nothing it would make up for chance alone, so it has a bound.
"""

import math
from collections.abc import Sequence
from typing import Final

MOST: Final = 0.75
"""Times the root of the number of replicas: the best of the factors that were tried with four and
eight of them, 1.5 and 2 (`tests/bench/learning.py`, 48 rounds)."""


def stretch(counts: Sequence[int], sq_norm: float, own_sq_norm: float) -> float:
    """Return the factor of the outer step, which is at least 1 and bounded whatever an owner says
    of its segment.

    Args:
        counts: microbatches of each member.
        sq_norm: squared norm of the sum of the members' differences, each times its microbatches.
        own_sq_norm: of one member's difference, on the mean; 0: this is no local round.
    """
    most = MOST * math.sqrt(sum(map(bool, counts)))
    if not own_sq_norm or not sq_norm:
        return 1.0
    return max(1.0, min(sum(counts) * math.sqrt(own_sq_norm / sq_norm), most))
