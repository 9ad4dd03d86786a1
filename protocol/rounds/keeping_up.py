"""How long a stage waits for the newcomers that observe its rounds.

A newcomer fetches the state of one version, and hears the sums of every round since, so that it can
make the later versions of its own. Both come over one line, on which sums go first. Where a stage
closes steps faster than that line carries their sums, what is queued would grow until the link is
cut, and the newcomer would begin anew, for ever. So the next step is planned only when the
observers of the last one have its sums, and then as long again as they lagged behind: sums take at
most half of a line. On a line that carries the state (S bytes) in S / L seconds, it then comes in 2
S / L, while at most S / V rounds of V bytes are closed: 12 to 20. With one more replica each step
takes as long anyway, for a member sends and receives V once each; and a stage whose steps take
twice as long as a line needs for the sums does not wait at all.

A newcomer may be slow or lie. One that holds up a step for longer than the sums take on a line of
``LEAST_BYTES_PER_S``, observes for longer than the state takes on it, or goes, is given up: it is
sent nothing more until it is admitted anew. Then nobody is waited for that nobody has worked with,
for as long as the one given up had observed, twice as long with each; until one has worked. So
newcomers that never come in slow a stage down half of the time at first, then a seventeenth of it.

Every replica notes what the plans say, for any may lead next. State: the last plan's observers, and
when each had its sums; since when each newcomer observes. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from protocol import limits
from protocol.answer import YES, Answer, no
from protocol.ids import PeerId, short
from protocol.view import Replica

LEAST_BYTES_PER_S: Final = 1_000_000
"""8 Mbit/s: no slower line is waited for."""
SUM_BYTES: Final = 2
"""Of an element of a round's sums: the default codec has one, the exact one four."""
STATE_BYTES: Final = 20
"""Of an element of a state: the most of any optimizer (``limits.MAX_STAGE_PARAMETERS``)."""
LEAST_S: Final = 10.0
"""A step waits so long even if its sums are small: what is lost with a link is noticed by then."""
LEAST_IN_ALL_S: Final = 120.0
SILENT_S: Final = 60.0
"""From one segment of the sums to the next: 15 MiB take a quarter of it."""
UNSEEN_S: Final = 3.0
"""An observer may have been admitted so shortly before a plan that its heartbeats come later."""
LOOK_S: Final = 0.5
"""How often it is looked again whether they have got the sums."""
GONE_S: Final = 20.0
"""An observer that is not seen for so long does not come back soon."""
KEPT_STATES: Final = 2
"""A newcomer has room for the sums of rounds of so many times the bytes of the state."""
SHARE: Final = 0.5
"""Of the time that a round takes, its observers have so much besides."""
MOST_DOUBLINGS: Final = 4


@dataclass(slots=True)
class _Round:
    """The last one that was planned."""

    step: int = -1
    planned_at: float = 0.0
    closed_at: float | None = None
    awaited: dict[PeerId, tuple[int, float]] = field(default_factory=dict)
    """The observers that have not got its sums: how much they have got, and since when."""
    again_at: float = 0.0
    """Until when nothing is planned for the sake of those that have."""


class KeepingUp:
    """See the module's docstring.

    Args:
        size: elements of the stage's gradient.
        is_proven: whether a peer's work is in a step that we closed.
    """

    def __init__(self, size: int, is_proven: Callable[[PeerId], bool]) -> None:
        self._is_proven, self._round = is_proven, _Round()
        self.step_s = LEAST_S + size * SUM_BYTES / LEAST_BYTES_PER_S
        """The most that a step waits for the sums of the last one to arrive; the same again until
        it is planned."""
        self.in_all_s = LEAST_IN_ALL_S + 2 * size * STATE_BYTES / LEAST_BYTES_PER_S
        """The longest that a newcomer observes."""
        self._since: dict[PeerId, float] = {}
        self._gone: dict[PeerId, float] = {}
        """The observers that are not seen, and since when."""
        self._came: set[PeerId] = set()
        """Newcomers that say they serve, and have not worked yet."""
        self._given_up: dict[PeerId, None] = {}
        self._in_vain, self._rests_until = 0, 0.0
        self._look_at: float | None = None

    # --- queries ---------------------------------------------------------------------------

    def may_observe(self, peer: PeerId) -> bool:
        """Whether a newcomer is sent the sums of rounds."""
        return peer not in self._given_up

    def next_deadline(self) -> float | None:
        """Return when a step may be planned that could not when it was asked."""
        return self._look_at

    def may_plan(self, step: int, now: float) -> Answer:
        """Whether a step may be planned as far as its newcomers go.

        Args:
            step: our step.
            now: monotonic seconds.
        """
        self._look_at, of = None, self._round
        if of.step != step - 1 or of.closed_at is None:
            return YES
        late, until = [p for p in of.awaited if self._waited_for(p, now)], of.again_at
        if not late and now >= until:
            return YES
        self._look_at = now + LOOK_S if late else until
        if late:
            return no(f"{', '.join(map(short, sorted(late)))} joins, and has not got the last sums")
        return no("whoever joins fetches the state meanwhile")

    # --- inputs ----------------------------------------------------------------------------

    def admitted(self, peer: PeerId) -> None:
        """A leader has admitted a newcomer, perhaps anew: its time goes on if it was observing."""
        self._given_up.pop(peer, None)

    def planned(self, step: int, observers: Iterable[str], now: float) -> None:
        """A plan of a step is followed.

        Args:
            step: the step.
            observers: the newcomers that get its sums.
            now: monotonic seconds.
        """
        if step < self._round.step:
            return
        there = {PeerId(peer) for peer in observers}
        for peer in there:
            self._since.setdefault(peer, now)
        awaited = dict.fromkeys(there - self._given_up.keys(), (-1, now))
        self._round = _Round(step, now, awaited=awaited)

    def closed(self, step: int, now: float) -> None:
        """A step is closed: whoever has not got its sums lags behind from now on."""
        if step == self._round.step and self._round.closed_at is None:
            self._round.closed_at = now

    def look(self, replicas: Collection[Replica], now: float) -> None:
        """Take what the replicas of our stage say of themselves.

        Args:
            replicas: those of the view, fetching ones included.
            now: monotonic seconds.
        """
        of, found = self._round, {r.peer: r for r in replicas}
        for peer in sorted(of.awaited):
            replica = found.get(peer)
            if replica is None:
                if now >= of.planned_at + UNSEEN_S:
                    del of.awaited[peer]  # it is gone
            elif max(replica.version, replica.follows) > of.step:
                del of.awaited[peer]
                self._has_got_it(peer, now)
            elif self._is_too_slow(peer, replica.moved, now):
                self._give_up(peer, now)
        for peer in list(self._since):
            self._look_at_one(peer, found.get(peer), now)
        if any(map(self._is_proven, self._came)):
            self._in_vain = 0
        self._came = {p for p in self._came if p in found and not self._is_proven(p)}

    # --- inside ----------------------------------------------------------------------------

    def _look_at_one(self, peer: PeerId, replica: Replica | None, now: float) -> None:
        """See whether an observer has come in, or takes too long."""
        if replica is not None:
            self._gone.pop(peer, None)
        if replica is not None and replica.serving:
            del self._since[peer]
            self._came.add(peer)
        elif now >= self._since[peer] + self.in_all_s or (
            replica is None and now >= self._gone.setdefault(peer, now) + GONE_S
        ):
            self._give_up(peer, now)

    def _is_too_slow(self, peer: PeerId, moved: int, now: float) -> bool:
        """Whether an observer takes too long for the sums of a step that is closed."""
        of = self._round
        if moved != of.awaited[peer][0] or of.closed_at is None:
            of.awaited[peer] = moved, now
        if of.closed_at is None:
            return False
        return now >= min(of.closed_at + self.step_s, of.awaited[peer][1] + SILENT_S)

    def _waited_for(self, peer: PeerId, now: float) -> bool:
        return now >= self._rests_until or self._is_proven(peer)

    def _has_got_it(self, peer: PeerId, now: float) -> None:
        """Leave the line of an observer to its state for a while."""
        of = self._round
        if not self._waited_for(peer, now):
            return
        lagged_s = 0.0 if of.closed_at is None else now - of.closed_at
        rest_s = max(lagged_s, SHARE * (now - of.planned_at))
        of.again_at = max(of.again_at, now + min(rest_s, self.step_s))

    def _give_up(self, peer: PeerId, now: float) -> None:
        observed_s = now - self._since.pop(peer, now)
        self._round.awaited.pop(peer, None)
        self._gone.pop(peer, None)
        self._given_up[peer] = None
        for old in list(self._given_up)[: -limits.MAX_REPLICAS_IN_ROUND]:
            del self._given_up[old]
        if not self._waited_for(peer, now):
            return
        rest_s = max(observed_s, self.step_s) * (1 << min(self._in_vain, MOST_DOUBLINGS))
        self._rests_until, self._in_vain = now + rest_s, self._in_vain + 1
