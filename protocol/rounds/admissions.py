"""Admissions to a stage: the peers that ask for admission, and the admitted ones that observe.

Every replica notes both, for any may lead next. Times are monotonic seconds.
"""

from collections.abc import Callable, Collection
from typing import Final

from protocol import limits
from protocol.ids import PeerId
from protocol.pace import ASIDE_S, FORGET_S
from protocol.token_bucket import Rate, TokenBuckets

LetsIn = Callable[[PeerId, float], bool]
OFTEN: Final = Rate(1 / ASIDE_S, 8)
"""Admissions of one peer: for each its donors write the stage's whole state."""
MAX_ADMITTED: Final = 256
"""Peers whose admissions are counted."""


class Admissions:
    """See the module's docstring.

    Args:
        lets_in: whether a newcomer may be admitted now (``seat/standing.py``).
    """

    def __init__(self, lets_in: LetsIn) -> None:
        self._lets_in = lets_in
        self._asking: dict[PeerId, float] = {}
        self._observing: dict[PeerId, float] = {}
        self._often = TokenBuckets[PeerId](MAX_ADMITTED)

    def ask(self, joiner: PeerId, now: float) -> None:
        """Note that a newcomer asks for admission; it asks again when it has heard nothing."""
        self._asking[joiner] = now + FORGET_S

    def admitted(self, joiner: PeerId, now: float) -> bool:
        """Note that a leader has admitted a newcomer; its heartbeats soon say so. Return whether
        that counts: it has not been admitted too often."""
        if not self._often.take({joiner: OFTEN}, now):
            return False
        self._lets_observe(joiner, now)
        return True

    def _lets_observe(self, joiner: PeerId, now: float) -> None:
        self._asking.pop(joiner, None)
        self._observing[joiner] = now + FORGET_S

    def observing(self, now: float) -> list[PeerId]:
        """Return the recently admitted peers, in order of peer id."""
        self._observing = {p: until for p, until in self._observing.items() if until > now}
        return sorted(self._observing)

    def observers(
        self, arriving: Collection[PeerId], members: Collection[PeerId], now: float
    ) -> list[PeerId]:
        """Return the observers of a round, which are no ``members`` of it. If there are more than a
        plan can hold, admitted peers that report themselves as ``arriving`` come first."""
        let_in = self.observing(now)
        found = sorted({*let_in, *arriving}.difference(members))
        found.sort(key=lambda peer: (peer not in arriving, peer not in let_in))
        return sorted(found[: limits.MAX_REPLICAS_IN_ROUND])

    def admit(
        self, serving: Collection[PeerId], held: Collection[PeerId], now: float
    ) -> list[PeerId]:
        """Admit peers that ask, as long as all holders of the stage fit into one round, and few of
        them are new; return them.

        Args:
            serving: those that need no admission any more.
            held: all holders of the stage, including fetching ones.
        """
        self._asking = {p: until for p, until in self._asking.items() if until > now}
        found = list[PeerId]()
        for joiner in [peer for peer in self._asking if peer not in serving]:
            others = {*held, *self.observing(now)} - {joiner}
            if len(others) >= limits.MAX_REPLICAS_IN_ROUND:
                continue
            if self._often.has(joiner, OFTEN, now) and self._lets_in(joiner, now):
                self._lets_observe(joiner, now)
                found.append(joiner)
        return found
