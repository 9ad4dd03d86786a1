"""Detects replicas that take work and bring nothing while their siblings bring results.

Time alone proves little: if no replica brings anything, the stages behind are slow. So a replica
stalls if it has had work for long, has brought nothing since, and a sibling has brought work that
it got later. Decides; sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from protocol.ids import PeerId

LEAST_S: Final = 2.0
TIMES_A_SIBLING: Final = 6.0
"""As much longer than the slowest sibling needs."""
MOST_SLOWER: Final = 4.0
LOOK_S: Final = 0.5
"""How often the seat lets us look."""
OVERSLEPT_S: Final = 1.0
"""A look this late proves that our process was suspended: queued messages are still to be read."""


def stalling(
    since: Mapping[PeerId, float],
    brought_at: Mapping[PeerId, float],
    expected_s: Mapping[PeerId, float],
    now: float,
    *,
    fair_since: float = 0.0,
    times: float = 1.0,
    slower: Mapping[PeerId, float] | None = None,
    shown: bool = True,
) -> list[tuple[PeerId, float]]:
    """Return the stalling replicas, each with the seconds it has stalled.

    Args:
        since: by replica, when it got the oldest work awaited from it, monotonic seconds.
        brought_at: by replica, when it last brought a result.
        expected_s: by measured replica, seconds per piece of work.
        now: monotonic seconds.
        fair_since: earlier time is ignored, because not every replica could have brought a result.
        times: factor of the time allowed, for the stages behind.
        slower: by replica, how many times slower than the fastest it claims to be; a replica
            without a claim may be as slow as the slowest believed claim.
        shown: whether a sibling must have brought something in that time.
    """
    found = []
    for peer, at in since.items():
        begun = max(at, brought_at.get(peer, at))
        others = [p for p in expected_s if p != peer]
        if shown:
            others = [p for p in others if brought_at.get(p, begun) > begun]
        allowed = times * min((slower or {}).get(peer, MOST_SLOWER), MOST_SLOWER)
        waited_s = now - max(begun, fair_since)
        if others and waited_s >= limit((expected_s[p] for p in others), allowed):
            found.append((peer, waited_s))
    return found


def limit(expected_s: Iterable[float], times: float) -> float:
    """Return how long to wait where siblings take so long, for one that may take ``times`` that."""
    return max(LEAST_S, TIMES_A_SIBLING * times * max(expected_s, default=0.0))
