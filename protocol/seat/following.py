"""Whether a replica keeps up with its siblings.

A sibling that serves a later version proves that our step was committed; who cannot follow for some
seconds has lost what it needs to follow and must fetch the state anew. If we serve, and it is two
versions ahead, a step was closed without us: there is nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from protocol.ids import PeerId
from protocol.view import Replica

BEHIND_S = 6.0


class Following:
    """Holds since when we are behind.

    Args:
        hears: whether a peer is there at a moment: what an absent one has said may be outdated.
    """

    def __init__(self, hears: Callable[[PeerId, float], bool]) -> None:
        self._hears = hears
        self._behind_since: float | None = None

    @property
    def behind(self) -> bool:
        """Whether a sibling serves a later version than we do."""
        return self._behind_since is not None

    def caught_up(self) -> None:
        """Our version has risen."""
        self._behind_since = None

    def compare(
        self, siblings: Sequence[Replica], step: int, now: float, *, serving: bool
    ) -> Replica | None:
        """Look at the serving siblings; return one, if it is there, whose version our step's commit
        has made."""
        newer = [replica for replica in siblings if replica.version > step]
        if not newer:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = now
        if serving and any(replica.version > step + 1 for replica in newer):
            self._behind_since = now - BEHIND_S
        next_ones = (r for r in newer if r.version == step + 1 and r.digest)
        return next((r for r in next_ones if self._hears(r.peer, now)), None)

    def is_lost(self, now: float) -> bool:
        """Whether we have been behind for too long; said once."""
        if self._behind_since is None or now < self._behind_since + BEHIND_S:
            return False
        self._behind_since = None
        return True

    def next_deadline(self) -> float | None:
        """Return when ``is_lost`` may become true."""
        return None if self._behind_since is None else self._behind_since + BEHIND_S
