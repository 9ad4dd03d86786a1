"""A needy stage names the one volunteer that it would gain most by, and that one comes.

Only the neediest stages call, one volunteer at a time; the volunteer judges for itself whether the
change pays. State: the name, and those who did not come.
"""

from collections.abc import Collection

from protocol.ids import PeerId, Stage
from protocol.matching import preferences
from protocol.matching.context import Context
from protocol.matching.gain import paying
from protocol.matching.timing import LOOK_S, MEASURED_S, NEXT_CALL_S, PASSED_OVER_S

MEMBERS_PER_CALLER = 3
"""With so many members a stage one more stage calls at the same time, up to a quarter of them."""


class Wanted:
    """The call of one stage."""

    def __init__(self, context: Context, stage: Stage) -> None:
        self.peer: PeerId | None = None
        """Whom the stage wants now."""
        self._context, self._stage = context, stage
        self._look_at: float | None = None
        self._absent: dict[PeerId, float] = {}
        """Who did not come, and until when it is not called again."""

    def next_deadline(self) -> float:
        """Return when ``tick`` has something to do, monotonic seconds."""
        return 0.0 if self._look_at is None else self._look_at

    def look(self, now: float) -> None:
        """Look at the changed board: an empty stage does not wait."""
        if self._look_at is not None and self._stage in self._context.board.facts(now).empty:
            self._look_at = min(self._look_at, now + NEXT_CALL_S)

    def tick(self, present: Collection[PeerId], now: float) -> None:
        """Take the name back once its owner is ``present`` or has not come; name the next one."""
        if self._look_at is None:
            self._look_at = now + LOOK_S * preferences.moment(self._stage, self._context.me)
        if self.peer is not None and self.peer in present:
            self.peer, self._look_at = None, now + NEXT_CALL_S
        if now < self._look_at:
            return
        if self.peer is not None:
            self._absent[self.peer] = now + MEASURED_S
        self.peer = self._choose(present, now)
        self._look_at = now + (LOOK_S if self.peer is None else PASSED_OVER_S)

    def _choose(self, present: Collection[PeerId], now: float) -> PeerId | None:
        """Return whom to call; nobody while the view does not show all who are ``present``."""
        population, supply = self._context.population, self._context.population.supply
        shown = population.holders(self._stage).issuperset(present)
        if not shown:
            return None
        stages = len(population.costs)
        callers = 1 + len(population.members) // (MEMBERS_PER_CALLER * stages)
        if self._stage not in supply.neediest(max(1, min(callers, stages // 4))):
            return None
        self._absent = {peer: until for peer, until in self._absent.items() if until > now}
        found = (change.peer for change in paying(population, self._stage))
        return next((peer for peer in found if peer not in self._absent), None)
