"""Who takes work and brings nothing, while others with the same work bring theirs.

Times alone prove little: where nothing comes from anybody, the stages behind are slow. So a replica
stalls if it has had something for long, brought nothing since, and a sibling has brought what it
got later. Decides; sends nothing.
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
"""Looking so much later proves that we slept: what waited meanwhile is still to be heard."""


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
    """Return who stalls, and for how many seconds.

    Args:
        since: by replica, when it got the oldest of what is awaited of it.
        brought_at: by replica, when it brought something last.
        expected_s: by measured replica, how long a piece of work takes there.
        fair_since: seconds before that prove nothing: not everybody could have brought something.
        times: how many times as long they have, for the stages behind.
        slower: by replica, how many times slower than the fastest it says that it is; who has not
            said so may be as slow as anybody is believed to be.
        shown: False: a sibling need not have brought anything meanwhile.
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
