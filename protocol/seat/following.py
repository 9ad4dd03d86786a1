"""Whether a replica keeps up with its siblings.

A sibling that serves a later version proves that our step was committed: if it names the attempt
that we follow, we apply that. A replica that cannot follow for some seconds has lost what it needs
and must fetch the state again. It need not wait if it serves and the step was closed without it:
with an attempt that it does not follow, or because the sibling is two versions ahead. A claim
queued while this process was suspended does not count, so we check again.

One claim alone does not make us give up our state. It may be an invention, and once it is true
others bear it out: a second sibling, or a neighbour that serves a version that takes one of ours
(or the last one of the run). We go on meanwhile: had our step been closed without us, we could not
close it once more (``rounds/quorum.py``). Who has no neighbour or is out of touch with a majority
of the step's electors has nobody to ask, and believes it after the same few seconds.

Identities are free, so the word of a sibling that does not count yet (``probation.py``) is hearsay:
it may be all that is left of those that went on without us, or an invention. It proves no commit.
It is believed along with a neighbour, as above, or when we are out of touch for ``HEARSAY_S``.
"""

from __future__ import annotations

from collections.abc import Container

from protocol.ids import PeerId
from protocol.view import Replica, SwarmView

BEHIND_S = 6.0
HEARSAY_S = 60.0
"""How long hearsay alone may be ahead of a seat that is out of touch before it is believed."""
LOOK_S = 0.5
"""How often we look again while a sibling is ahead."""


class Following:
    """Holds since when we are behind."""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self.looks_again = False
        """Whether a sibling says that it serves a later version."""
        self._behind_since: float | None = None
        self._told_since: float | None = None
        """Since when hearsay alone is ahead of us, and we are out of touch."""
        self._look_at = 0.0

    @property
    def behind(self) -> bool:
        """Whether our stage has gone on without us, as far as it is borne out."""
        return self._behind_since is not None

    def caught_up(self) -> None:
        """Our version has risen."""
        self._behind_since = self._told_since = None
        self.looks_again = False

    def compare(
        self,
        view: SwarmView,
        step: int,
        now: float,
        promised: int | None,
        heard: Container[PeerId],
        hearsay: Container[PeerId] = (),
        *,
        last: int,
        in_touch: bool = True,
    ) -> Replica | None:
        """Return a serving sibling whose version our step's commit has made, or None.

        Args:
            view: the live replicas.
            step: our step.
            now: monotonic seconds.
            promised: the attempt that we follow; None for an observer, which may be far behind and
                has what it needs to catch up.
            heard: the siblings whose messages were not queued while this process was suspended.
            hearsay: the peers of our stage and those beside it that do not count yet.
            last: the run's last version.
            in_touch: whether we are, with a majority of the step's electors.
        """
        said = [replica for replica in view.serving(self._stage) if replica.version > step]
        if not said or step >= last:
            self.caught_up()
            return None
        near = (*view.serving(self._stage - 1), *view.serving(self._stage + 1))
        near = tuple(replica for replica in near if replica.peer not in hearsay)
        newer = [replica for replica in said if replica.peer not in hearsay]
        needed = any(replica.version >= min(step + 2, last) for replica in near)
        asked = bool(near) and in_touch
        borne_out = needed or len(newer) > 1 or (bool(newer) and not asked)
        self._note(now, behind=borne_out, told=not in_touch)
        if promised is None:
            return next((r for r in newer if r.version == step + 1 and r.digest), None)
        there = [replica for replica in newer if replica.peer in heard]
        left_out = any(r.version > step + 1 or (r.digest and r.attempt != promised) for r in there)
        witnesses = {replica.peer for replica in (*there, *near) if replica.version > step}
        if borne_out and left_out and len(witnesses) > 1:
            self._behind_since = now - BEHIND_S
        return next((r for r in there if r.version == step + 1 and r.digest), None)

    def _note(self, now: float, *, behind: bool, told: bool) -> None:
        """Siblings are ahead of us: for certain, or by hearsay that may be true."""
        self.looks_again, self._look_at = True, now + LOOK_S
        if not behind:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = now
        if behind or not told:
            self._told_since = None
        elif self._told_since is None:
            self._told_since = now

    def is_lost(self, now: float) -> bool:
        """Whether we have been behind for too long; said once."""
        lost_at = self._lost_at()
        if lost_at is None or now < lost_at:
            return False
        self.caught_up()
        return True

    def next_deadline(self) -> float | None:
        """Return when to look again."""
        if not self.looks_again:
            return None
        lost_at = self._lost_at()
        return self._look_at if lost_at is None else min(self._look_at, lost_at)

    def _lost_at(self) -> float | None:
        if self._behind_since is not None:
            return self._behind_since + BEHIND_S
        return None if self._told_since is None else self._told_since + HEARSAY_S
