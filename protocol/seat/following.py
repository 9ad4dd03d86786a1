"""Whether a replica keeps up with its siblings.

A sibling that serves a later version proves that our step was committed. A replica that cannot
follow for some seconds has lost what it needs and must fetch the state again. It need not wait if
it serves and the step was closed without it: with an attempt that it does not follow, or because
the sibling is two versions ahead. One claim alone does not make us give up our state: another
replica, of our stage or a neighbour, must be past the step as well. A claim queued while this
process was suspended does not count, so we check again.
"""

from __future__ import annotations

from collections.abc import Container

from protocol.ids import PeerId
from protocol.view import Replica, SwarmView

BEHIND_S = 6.0
LOOK_S = 0.5
"""How often we look again while a sibling is ahead."""


class Following:
    """Holds since when we are behind."""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._behind_since: float | None = None
        self._look_at = 0.0

    @property
    def behind(self) -> bool:
        """Whether a sibling serves a later version than we do."""
        return self._behind_since is not None

    def caught_up(self) -> None:
        """Our version has risen."""
        self._behind_since = None

    def compare(
        self,
        view: SwarmView,
        step: int,
        now: float,
        promised: int | None,
        heard: Container[PeerId],
    ) -> Replica | None:
        """Return a serving sibling whose version our step's commit has made, or None.

        Args:
            view: the live replicas.
            step: our step.
            now: monotonic seconds.
            promised: the attempt that we follow; None for an observer, which may be far behind and
                has what it needs to catch up.
            heard: the siblings whose messages were not queued while this process was suspended.
        """
        newer = [replica for replica in view.serving(self._stage) if replica.version > step]
        if not newer:
            self._behind_since = None
            return None
        if self._behind_since is None:
            self._behind_since = now
        self._look_at = now + LOOK_S
        if promised is None:
            return next((r for r in newer if r.version == step + 1 and r.digest), None)
        there = [replica for replica in newer if replica.peer in heard]
        left_out = any(r.version > step + 1 or (r.digest and r.attempt != promised) for r in there)
        near = (*view.serving(self._stage - 1), *view.serving(self._stage + 1))
        witnesses = {replica.peer for replica in (*there, *near) if replica.version > step}
        if left_out and len(witnesses) > 1:
            self._behind_since = now - BEHIND_S
        return next((r for r in there if r.version == step + 1 and r.digest), None)

    def is_lost(self, now: float) -> bool:
        """Whether we have been behind for too long; said once."""
        if self._behind_since is None or now < self._behind_since + BEHIND_S:
            return False
        self._behind_since = None
        return True

    def next_deadline(self) -> float | None:
        """Return when to look again."""
        if self._behind_since is None:
            return None
        return min(self._look_at, self._behind_since + BEHIND_S)
