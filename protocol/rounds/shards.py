"""The averaging plan: the owner of each part of the flat gradient.

Butterfly all-reduce of V bytes among N members, member i owning the share w_i: it uploads its
contribution to the others, (1 - w_i) V, and broadcasts its reduced shard, (N - 1) w_i V; together
V (1 + (N - 2) w_i). The slowest uplink decides, so minimise max_i (1 + (N - 2) w_i) / U_i
(hivemind's load balancing, arXiv 2106.10207). Solved here in closed form by water filling instead
of by a linear program.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from protocol import limits
from protocol.ids import PeerId
from protocol.view import Replica

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


def uplinks(replicas: Sequence[Replica], members: Sequence[PeerId], size: int) -> list[float]:
    """Return the weights of the members' uplinks in a plan, in a common unit.

    Args:
        replicas: the stage's replicas with their bandwidths.
        members: the plan's members, in order.
        size: elements of the gradient.
    """
    known = {r.peer: (r.uplink_bytes_per_s, r.downlink_bytes_per_s) for r in replicas}
    return heeded([known.get(peer, (0.0, 0.0)) for peer in members], segments(size, len(members)))


def heeded(lines: Sequence[tuple[float, float]], count: int) -> list[float]:
    """Return the uplink weights; only much slower links deviate from the median.

    ``lines`` are uplinks and downlinks (0: unknown). Slow links count only where that makes the
    round faster: others have to sum and send what they do not own.

    Any other line, and an unknown one, counts as the (upper) median. So no claim makes a member own
    more than its equals, and similar lines get equal shards although measurements differ.
    """
    narrow = [min(line) for line in lines]
    known = [rate for rate in narrow if rate > 0]
    usual, members = statistics.median_high(known) if known else 1.0, len(lines)
    found = [least if 0 < least < SLOW * usual else usual for least in narrow]
    slow = [(min(line), max(line)) if 0 < min(line) < usual else (usual, usual) for line in lines]

    def slowest_s(uplinks: list[float]) -> float:
        lines = zip(shares(uplinks), slow, strict=True)
        return max(round_s(share, line, members, count) for share, line in lines)

    equal = [usual] * members
    return found if slowest_s(found) < slowest_s(equal) else equal


def round_s(share: float, line: tuple[float, float], members: int, segments: int) -> float:
    """Return how long a round of one unit of gradient occupies a member.

    While gathering it sends (1 - share) and gets (N - 1) share; then it broadcasts as much as it
    got and gets the rest. All but one segment of these halves may overlap.

    Args:
        share: the part of the gradient that it owns.
        line: its uplink and downlink, units per second.
        members: N.
        segments: segments per shard.
    """
    up, down = line
    others, own = 1 - share, (members - 1) * share
    apart = max(others / up, own / down) + max(own / up, others / down)
    together = (others + own) / min(up, down)
    return together + (apart - together) / segments


def longest_s(size: int, number_bytes: float) -> float:
    """Return how long a round of the largest stage may take on a slow line, however many take part:
    every member sends less than the gradient twice."""
    return 2 * size * number_bytes / SLOW_LINE_BYTES_PER_S


def segments(size: int, members: int) -> int:
    """Return into how many segments each of ``members`` equal shards of ``size`` is cut: as many
    as pay, and as its size needs."""
    shard = -(-size // members)
    return max(min(shard // SEGMENT, ENOUGH), -(-shard // LARGEST), 1)


def most_segments(size: int) -> int:
    """Return the most segments that a member of any plan owns, of a gradient of ``size``."""
    return min(max(ENOUGH, -(-size // LARGEST)), limits.MAX_SEGMENTS)


def largest_segment(size: int) -> int:
    """Return the most elements of a segment of any plan, of a gradient of ``size``."""
    return min(size, max(-(-size // ENOUGH) + ALIGN, 2 * SEGMENT), limits.MAX_SEGMENT_ELEMENTS)


def shares(uplinks: Sequence[float]) -> list[float]:
    """Return the optimal shares w_i (sum 1) for uplinks U_i in any common unit.

    A member whose uplink is too slow to own anything gets 0. With two members every split costs
    the same, so shares follow the uplinks.
    """
    count = len(uplinks)
    usable = [max(u, 1e-9) for u in uplinks]
    if count <= 2:
        return [u / sum(usable) for u in usable]
    owners = list(range(count))
    while True:
        total = sum(usable[i] for i in owners)
        level = (count - 2 + len(owners)) / total
        below = [i for i in owners if level * usable[i] < 1.0]
        if not below:
            break
        owners = [i for i in owners if i not in below]
    result = [0.0] * count
    for i in owners:
        result[i] = (level * usable[i] - 1.0) / (count - 2)
    return result


def shard_bounds(size: int, uplinks: Sequence[float]) -> list[int]:
    """Cut ``size`` elements into len(uplinks) consecutive shards; into equal ones where all would
    have too many segments because one is large.

    Returns:
        len(uplinks) + 1 offsets from 0 to ``size``; inner ones are multiples of ``ALIGN``.
    """
    parts, members = shares(uplinks), len(uplinks)
    largest = math.ceil(max(parts) * size) + ALIGN
    if members * segments(largest, 1) > limits.MAX_SEGMENTS:
        parts = [1 / members] * members
    offsets = [0]
    accumulated = 0.0
    for share in parts[:-1]:
        accumulated += share
        aligned = round(accumulated * size / ALIGN) * ALIGN
        offsets.append(min(max(aligned, offsets[-1]), size))
    return [*offsets, size]


def segmented(bounds: Sequence[int]) -> list[int]:
    """Cut every shard into equally many segments, each of which is summed and broadcast while the
    next one is still gathered (the segmented collectives of MPI).

    Args:
        bounds: of one shard per member.

    Returns:
        The bounds of the segments, those of a shard one after the other.
    """
    count = segments(max(b - a for a, b in itertools.pairwise(bounds)), 1)
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
