"""The second seat: the faster volunteers also hold a stage adjacent to their home.

It needs no consent: a second replica displaces nobody, and every steward sees it in the view. It
reconsiders periodically, at a time of its own so that neighbours do not all choose the same stage,
and changes only for a clear gain, make before break. State: the stage it holds and the one it
leaves. Reads the context.
"""

from __future__ import annotations

from dataclasses import replace

from protocol.effects import Explain
from protocol.ids import Stage
from protocol.matching import preferences
from protocol.matching.averaging import Trade
from protocol.matching.context import Context
from protocol.matching.effects import Assign, Effect, Unassign
from protocol.matching.sharing import StageLevel, lowest_level
from protocol.matching.timing import (
    SECOND_FETCH_S,
    SECOND_HASTE_S,
    SECOND_LOOK_S,
    SECOND_STAY_S,
)

INFINITY = float("inf")
LEVEL_STEPS = 20
"""Levels that differ by less than a twentieth of the highest count as equal."""
LOWEST_STEPS = 200
"""Differences below half a per cent at the lowest stage are ignored."""
CLEARLY_PERCENT = 103
"""Required level of the lowest stage, in per cent of the present one, before it changes sides."""


class SecondSeat:
    """Machine of one second seat."""

    def __init__(self, context: Context) -> None:
        self.stage: Stage | None = None
        self.leaving: Stage | None = None
        """The old stage of a change, served until the new one is."""
        self.serves = False
        self._context = context
        self._look_at = INFINITY
        self._chosen_at = -INFINITY
        self._refused: Stage | None = None
        """The stage last refused or given up because of its averaging: said once."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Every stage held with this seat."""
        return tuple(s for s in (self.stage, self.leaving) if s is not None)

    def owns(self, stage: Stage) -> bool:
        """Tell whether a stage is held with this seat."""
        return stage in self.stages

    # --- inputs -----------------------------------------------------------------------------

    def home_changed(self, home: Stage | None, now: float) -> list[Effect]:
        """Note that our first seat serves another stage, or none; keep only an adjacent stage."""
        if home is None:
            self._look_at = INFINITY
        elif self._look_at == INFINITY:
            self._look_at = now + self._moment(SECOND_LOOK_S)
        beside = (self.stage is not None) and home is not None and abs(self.stage - home) == 1
        return [] if beside else self._drop("our main stage is elsewhere now")

    def look(self, home: Stage | None, now: float) -> None:
        """Look at the changed board: an adjacent stage that lacks replicas is urgent."""
        soon = now + self._moment(SECOND_HASTE_S)
        if home is None or soon >= self._look_at:
            return
        thin = self._context.board.facts(now).thin
        if thin and any(s in thin and s != self.stage for s in self._beside(home)):
            self._look_at = soon

    def tick(self, home: Stage | None, now: float) -> list[Effect]:
        """Consider whether to hold a stage adjacent to our home."""
        if now < self._look_at or home is None:
            return []
        self._look_at = now + SECOND_LOOK_S
        return self._choose(home, now)

    def serving(self, stage: Stage) -> list[Effect]:
        """Note that the training side serves the stage."""
        if stage != self.stage:
            return []
        self.serves = True
        if self.leaving is None:
            return []
        left, self.leaving = self.leaving, None
        return [Unassign(left, f"our second stage is {stage} now")]

    def lost(self, stage: Stage) -> None:
        """Note that the training side cannot serve the stage any more."""
        if stage == self.leaving:
            self.leaving = None
        elif stage == self.stage:
            self.stage, self.leaving, self.serves = self.leaving, None, self.leaving is not None

    def leave(self) -> list[Effect]:
        """Give up all stages of this seat."""
        self._look_at = INFINITY
        return self._drop("leaving")

    def next_deadline(self) -> float:
        """Return when ``tick`` has something to do, monotonic seconds."""
        return self._look_at

    # --- choice -----------------------------------------------------------------------------

    def _choose(self, home: Stage, now: float) -> list[Effect]:
        population, me = self._context.population, self._context.me
        levels = self._context.board.levels(now)
        if not levels or me not in population or (self.stage is not None and not self.serves):
            return []
        hopes = [stage for stage in self._beside(home) if population.fits_both(me, home, stage)]
        if not hopes:
            return []
        if self.stage is not None and (trade := self._loss(home, self.stage, now)):
            self._refused = self.stage
            return self._drop(f"averaging it takes more than it is worth: {trade}")
        if self.stage is None:
            best = min(hopes, key=lambda stage: self._order(home, stage, levels, now))
            cheap = population.download_s(me, best) <= SECOND_FETCH_S
            if self._is_thin(best, now):
                return self._take(best, levels, now)
            if not cheap or not population.is_fast(me):
                return []
            trade = self._loss(home, best, now)
            return self._refuse(best, trade) if trade else self._take(best, levels, now)
        other = next((stage for stage in hopes if stage != self.stage), None)
        if other is None or not self._is_better(home, other, levels, now):
            return []
        return self._take(other, levels, now)

    def _loss(self, home: Stage, stage: Stage, now: float) -> Trade | None:
        """Return what a second stage would cost if it is not worth its averaging; else None. One
        that we hold is kept while it lacks replicas, or others that serve it, without us."""
        population, me, held = self._context.population, self._context.me, stage == self.stage
        if held and not (population.serves_without(stage, me) and self._is_spare(stage, now)):
            return None
        trade = population.second_stage(me, home, stage)
        return None if trade.is_worth(held=held) else trade

    def _refuse(self, stage: Stage, trade: Trade) -> list[Effect]:
        if stage == self._refused:
            return []
        self._refused = stage
        return [Explain("matching", f"no second stage {stage}, for its averaging: {trade}")]

    def _is_better(self, home: Stage, other: Stage, levels: tuple[int, ...], now: float) -> bool:
        if other == self.stage or self.stage is None or now < self._chosen_at + SECOND_STAY_S:
            return False
        if self._is_thin(self.stage, now, without=1):
            return False
        if self._is_thin(other, now):
            return True
        if levels[other] >= levels[self.stage]:
            return False
        now_lowest = lowest_level(self._context.board.stage_levels(now)) * CLEARLY_PERCENT
        return lowest_level(self._with_us_between(home, other, now)) * 100 > now_lowest

    def _take(self, stage: Stage, levels: tuple[int, ...], now: float) -> list[Effect]:
        self.leaving, self.stage, self.serves = self.stage, stage, False
        self._chosen_at, self._refused = now, None
        level = preferences.words(levels[stage])
        reason = f"second stage {stage}: it is the lower one beside our main stage ({level})"
        return [Assign(stage, reason), Explain("matching", reason, decision="place")]

    def _drop(self, reason: str) -> list[Effect]:
        held, self.stage, self.leaving, self.serves = self.stages, None, None, False
        return [Unassign(stage, reason) for stage in held]

    def _beside(self, home: Stage) -> list[Stage]:
        last = len(self._context.population.costs) - 1
        return [Stage(s) for s in (home - 1, home + 1) if 0 <= s <= last]

    def _order(
        self, home: Stage, stage: Stage, levels: tuple[int, ...], now: float
    ) -> tuple[bool, int, int, int, int]:
        """Return a sort key, smallest best: thin stages, then the gain of the lowest stage, then
        low levels, then edges that few share."""
        lowest = lowest_level(self._with_us_between(home, stage, now))
        step = max(1, max(levels) // LOWEST_STEPS)
        bucket = levels[stage] * LEVEL_STEPS // max(*levels, 1)
        shared = self._context.board.shared_rate(min(home, stage), now)
        tie = preferences.tie(self._context.me, stage)
        return (not self._is_thin(stage, now), -(lowest // step), bucket, shared, tie)

    def _with_us_between(self, home: Stage, stage: Stage, now: float) -> list[StageLevel]:
        """Return the rates of every stage if we shared our time between home and a stage."""
        population, me = self._context.population, self._context.me
        changed = self._context.board.stage_levels(now)
        if self.stage is None:
            here = changed[home]
            changed[home] = replace(here, alone=max(0, here.alone - population.rate(me, home)))
        else:
            self._add_to_pool(changed, home, self.stage, -1)
        self._add_to_pool(changed, home, stage, +1)
        return changed

    def _add_to_pool(self, stages: list[StageLevel], home: Stage, stage: Stage, sign: int) -> None:
        population, me = self._context.population, self._context.me
        lower = Stage(min(home, stage))
        pool = stages[lower]
        stages[lower] = replace(
            pool,
            pool_here=max(0, pool.pool_here + sign * population.rate(me, lower)),
            pool_next=max(0, pool.pool_next + sign * population.rate(me, Stage(lower + 1))),
        )

    def _is_thin(self, stage: Stage, now: float, without: int = 0) -> bool:
        notice = self._context.board.current(stage, now)
        return notice is not None and notice.posting.copies - without < notice.posting.r

    def _is_spare(self, stage: Stage, now: float) -> bool:
        """Tell whether a stage is known to have all replicas without us."""
        known = self._context.board.current(stage, now) is not None
        return known and not self._is_thin(stage, now, without=1)

    def _moment(self, within_s: float) -> float:
        """Return a time within an interval that differs from peer to peer."""
        return within_s * (preferences.tie(self._context.me, Stage(0)) % 1000) / 1000
