"""The averaging plan: the owner of each part of the flat gradient.

Butterfly all-reduce of V bytes among N members, member i owning the share w_i: it sends
V (1 + (N - 2) w_i), and the slowest uplink decides (hivemind's load balancing, arXiv 2106.10207). A
member whose line is below half of the usual one owns nothing in the optimum, or next to nothing,
and the others own equal shares: so it is here.
"""

import itertools
import statistics
from collections.abc import Sequence

from protocol import limits

ALIGN = 128
"""Shards start at multiples of a codec block, so that blocks never straddle owners."""
SEGMENT = 256 * 1024
"""Least elements of a segment: below it, a message costs more than what overlaps."""
ENOUGH = 8
"""Segments of a shard that are under way one behind the other: with more, little more overlaps."""
LARGEST = limits.MAX_SEGMENT_ELEMENTS - 2 * ALIGN
"""Elements of a segment; that its ends are aligned may add two blocks."""
SLOW_LINE_BYTES_PER_S = 5e6 / 8
"""Of what is still a home's line. How fast a line is shows only when something large went over it,
which may be the first round."""
SLOW = 0.5
"""A line below this share of the usual one is slow; above it a difference may be noise or a false
claim."""


def owning(lines: Sequence[tuple[float, float]]) -> list[bool]:
    """Return which members of a plan own a shard: of three or more all but those whose line is much
    slower than the (upper) median. Two send the same, whoever owns what. So no claim makes a member
    own more than its equals.

    Args:
        lines: uplink and downlink of each, bytes per second; 0: unknown.
    """
    narrow = [min(line) for line in lines]
    usual = statistics.median_high([rate for rate in narrow if rate > 0] or [0.0])
    return [len(lines) < 3 or not 0 < least < SLOW * usual for least in narrow]


def longest_s(size: int, number_bytes: float) -> float:
    """Return how long a round of the largest stage may take on a slow line, however many take part:
    every member sends less than the gradient twice."""
    return 2 * size * number_bytes / SLOW_LINE_BYTES_PER_S


def segments(shard: int) -> int:
    """Return into how many segments a shard of so many elements is cut: as many as pay, and as its
    size needs."""
    return max(min(shard // SEGMENT, ENOUGH), -(-shard // LARGEST), 1)


def most_segments(size: int) -> int:
    """Return the most segments that a member of any plan owns, of a gradient of ``size``."""
    return min(max(ENOUGH, -(-size // LARGEST)), limits.MAX_SEGMENTS)


def largest_segment(size: int) -> int:
    """Return the most elements of a segment of any plan, of a gradient of ``size``."""
    return min(size, max(-(-size // ENOUGH) + ALIGN, 2 * SEGMENT), limits.MAX_SEGMENT_ELEMENTS)


def shard_bounds(size: int, owns: Sequence[bool]) -> list[int]:
    """Cut ``size`` elements into len(owns) consecutive shards, equal ones for those that own one;
    for everybody where all would have too many segments because one is large.

    Returns:
        len(owns) + 1 offsets from 0 to ``size``; inner ones are multiples of ``ALIGN``.
    """
    if len(owns) * segments(-(-size // sum(owns)) + ALIGN) > limits.MAX_SEGMENTS:
        owns = [True] * len(owns)
    before = itertools.accumulate(owns[:-1])
    cuts = (round(owners * size / (sum(owns) * ALIGN)) * ALIGN for owners in before)
    return [0, *(min(cut, size) for cut in cuts), size]


def segmented(bounds: Sequence[int]) -> list[int]:
    """Cut every shard into equally many segments, each of which is summed and broadcast while the
    next one is still gathered (the segmented collectives of MPI).

    Args:
        bounds: of one shard per member.

    Returns:
        The bounds of the segments, those of a shard one after the other.
    """
    count = segments(max(b - a for a, b in itertools.pairwise(bounds)))
    inner = (
        min(b, a + -(-(b - a) * k // (count * ALIGN)) * ALIGN)
        for a, b in itertools.pairwise(bounds)
        for k in range(1, count + 1)
    )
    return [0, *inner]


def check_bounds(bounds: Sequence[int], members: int, size: int) -> bool:
    """Return whether ``bounds`` cut ``size`` elements into one shard for each of ``members``
    members, and all shards into equally many segments that are no larger than need be."""
    if not 0 < len(bounds) - 1 <= limits.MAX_SEGMENTS or (len(bounds) - 1) % members:
        return False
    largest = largest_segment(size)
    rising = all(0 <= b - a <= largest for a, b in itertools.pairwise(bounds))
    aligned = all(b % ALIGN == 0 for b in bounds[1:-1] if b != size)
    return bounds[0] == 0 and bounds[-1] == size and rising and aligned
