"""Whether a replica keeps up with its siblings.

A sibling that serves a later version proves that our step was committed. A replica that cannot
follow for some seconds has lost what it needs and must fetch the state again. It need not wait if
it serves and the step was closed without it: with an attempt that it does not follow, or because
the sibling is two versions ahead. One claim alone does not make us give up our state: another
replica, of our stage or a neighbour, must be past the step as well. A neighbour is if it serves a
version that takes one of ours: that it has closed its own step says nothing of ours. A claim queued
while this process was suspended does not count, so we check again.

Identities are free, so the word of a sibling that does not count yet (``probation.py``) is hearsay:
it may be all that is left of those that went on without us, or an invention. It proves no commit.
Had our step been closed, a majority of its electors would have done it. So hearsay ends nothing as
long as we are in touch with a majority of them and none that counts is past the step. Without them
we could close nothing anyway, and look for that state after ``HEARSAY_S``.

A sibling that has raised such an alarm alone lately, or has taken one back, is believed alone only
after twice as long for each of them (``membership/alarms.py``). Until then we go on as if it had
said nothing: it stops nobody from leading, and proves no commit but the one that we have decided
ourselves. While we are out of touch or look around, we could close nothing anyway, and believe it;
whom we have once believed in a step we go on believing. One that is a majority of the step's
electors by itself needs nobody's help to go on without us: it raises no alarm by that, only by what
it takes back before we believe it. By staying away it could stop the stage anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container

from protocol.ids import PeerId
from protocol.membership.alarms import Alarms
from protocol.view import Replica, SwarmView

BEHIND_S = 6.0
HEARSAY_S = 60.0
"""How long hearsay alone may be ahead of a seat that is out of touch before it is believed."""
LOOK_S = 0.5
"""How often we look again while a sibling is ahead."""


class Following:
    """Holds since when we are behind.

    Args:
        stage: ours.
        alarms: who has said so alone before.
    """

    def __init__(self, stage: int, alarms: Alarms) -> None:
        self._stage, self._alarms = stage, alarms
        self._alone: tuple[PeerId, int] | None = None
        """The only one that says that a step is closed, and the step."""
        self._needs_nobody = False
        """Whether the siblings that are ahead could have closed the step without anybody else."""
        self._doublings = 0
        """Of the time for which we wait for somebody else to say so, too."""
        self._behind_since: float | None = None
        self._believed_since: float | None = None
        """Since when somebody is ahead whose word counts at once."""
        self._told_since: float | None = None
        """Since when hearsay alone is ahead of us, and we are out of touch."""
        self._look_at = 0.0

    @property
    def behind(self) -> bool:
        """Whether a sibling serves a later version than we do, as far as we believe it."""
        return self._behind_since is not None and not self._doublings

    @property
    def looks_again(self) -> bool:
        """Whether a sibling may serve a later version, by hearsay too."""
        return self._behind_since is not None or self._told_since is not None

    def caught_up(self) -> None:
        """Our version has risen."""
        self._behind_since = self._believed_since = self._told_since = None
        self._doublings = 0

    def takes_back(self, view: SwarmView, step: int, now: float) -> bool:
        """Whether the only one that was ahead is not ahead any more, though the step is the same:
        it has lied, for versions only rise. Its word of then counts for nothing."""
        if self._alone is None or self._alone[1] != step:
            return False
        peer, _ = self._alone
        here = (r.version for r in view.serving(self._stage) if r.peer == peer)
        version = next(here, None)
        if version is None:
            self._alone = None  # what is known of it without a link is old
        if version is None or version > step:
            return False
        self._alone = None
        self._alarms.raised(peer, now)
        return True

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
        decided: tuple[int, bytes] | None = None,
        suffice: Callable[[Collection[PeerId]], bool] = lambda _ahead: False,
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
            last: the run's last version; nothing is later.
            in_touch: whether we are, with a majority of the electors, and have looked around.
            decided: attempt and digest, if we have decided as the step's leader.
            suffice: whether some peers alone are a majority of the step's electors.
        """
        said = [replica for replica in view.serving(self._stage) if replica.version > step]
        if not said or step >= last:
            self.caught_up()
            return None
        near = (*view.serving(self._stage - 1), *view.serving(self._stage + 1))
        near = tuple(replica for replica in near if replica.peer not in hearsay)
        newer = [replica for replica in said if replica.peer not in hearsay]
        if not newer and all(replica.version <= step + 1 for replica in near):
            self._behind_since = self._believed_since = self._alone = None
            self._hear(now, possible=not in_touch)
            return None
        self._told_since = None
        if self._behind_since is None:
            self._behind_since = now
        self._look_at = now + LOOK_S
        past = [replica for replica in near if replica.version > step + 1]
        ahead = {replica.peer for replica in (*newer, *past)}
        self._alone = (min(ahead), step) if len(ahead) == 1 else None
        self._needs_nobody = suffice({replica.peer for replica in newer})
        doubted = self._alone is not None and in_touch and self._believed_since is None
        self._doublings = self._alarms.times(min(ahead), now) if doubted else 0
        if self._doublings:
            same = (r for r in newer if r.version == step + 1 and (r.attempt, r.digest) == decided)
            return next(same, None)
        if self._believed_since is None:
            self._believed_since = now
        if promised is None:
            return next((r for r in newer if r.version == step + 1 and r.digest), None)
        there = [replica for replica in newer if replica.peer in heard]
        left_out = any(r.version > step + 1 or (r.digest and r.attempt != promised) for r in there)
        witnesses = {replica.peer for replica in (*there, *past)}
        if left_out and len(witnesses) > 1:
            self._believed_since = now - BEHIND_S
        return next((r for r in there if r.version == step + 1 and r.digest), None)

    def _hear(self, now: float, *, possible: bool) -> None:
        """Hearsay alone is ahead of us; note whether it may be true."""
        if not possible:
            self._told_since = None
        elif self._told_since is None:
            self._told_since = now

    def is_lost(self, now: float) -> bool:
        """Whether we have been behind for too long; said once."""
        lost_at = self._lost_at()
        if lost_at is None or now < lost_at:
            return False
        if self._behind_since is not None and self._alone is not None and not self._needs_nobody:
            self._alarms.raised(self._alone[0], now)
        self.caught_up()
        return True

    def next_deadline(self) -> float | None:
        """Return when to look again."""
        lost_at = self._lost_at()
        if lost_at is None or self._behind_since is None:
            return lost_at
        return min(self._look_at, lost_at)

    def _lost_at(self) -> float | None:
        if self._behind_since is not None:
            since = self._behind_since if self._doublings else self._believed_since
            return None if since is None else since + BEHIND_S * (1 << self._doublings)
        return None if self._told_since is None else self._told_since + HEARSAY_S
