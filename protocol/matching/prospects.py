"""A seat's prospects: the stages that may accept it, and its preference among them.

``Prospects`` are those of a home, ``Beside`` those of a second seat, which displaces nobody and so
is kept wherever it asks. State: refusals, and stewards that do not answer. Sends nothing.
"""

from collections.abc import Callable, Mapping

from protocol.ids import Stage
from protocol.matching import preferences
from protocol.matching.averaging import DROP, WORTH
from protocol.matching.board import Notice, describe
from protocol.matching.bodies import COMMITTED, Posting
from protocol.matching.context import Context
from protocol.matching.timing import HASTE_S, LOOK_S, PASSED_OVER_S, PATIENCE_S
from protocol.pace import FETCH_S
from protocol.wire.letters import Mandate

INFINITY = float("inf")
Notices = Mapping[Stage, Notice]


class Prospects:
    """The memory of one seat's search."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._refused: dict[Stage, tuple[Mandate, int]] = {}
        self._mute_until: dict[Stage, float] = {}
        self._absence_since: float | None = None

    def refuse(self, stage: Stage, mandate: Mandate, epoch: int) -> None:
        """Remember that ``stage`` rejected us under ``mandate`` in ``epoch``."""
        self._refused[stage] = (mandate, epoch)

    def mute(self, stage: Stage, now: float) -> None:
        """Remember that a steward does not answer."""
        self._mute_until[stage] = now + PASSED_OVER_S

    def wait_until(self, notices: Notices, now: float) -> float | None:
        """Return until when to wait before we ask (for the steward of a stage that has none), or
        None."""
        if len(notices) == len(self._context.population.costs):
            self._absence_since = None
            return None
        if self._absence_since is None:
            self._absence_since = now
        end = self._absence_since + PATIENCE_S
        return end if now < end else None

    def best(self, notices: Notices, now: float) -> Stage | None:
        """Return the stage of highest utility among those that may take us."""
        hopes = [s for s, n in notices.items() if self.obstacle(s, n.posting, now) is None]
        return max(hopes, key=lambda s: (self.wish(s, notices[s].posting), -s), default=None)

    def wish(self, stage: Stage, posting: Posting) -> preferences.Wish:
        """Return our utility of a stage, computed from its posting."""
        return self._context.population.wish(
            self._context.me,
            stage,
            level=posting.locked_level,
            fair=posting.fair,
            replicas=posting.locked_replicas + posting.seconds,
            r=posting.r,
        )

    def obstacle(self, stage: Stage, posting: Posting, now: float) -> str | None:
        """Return why a proposal to a stage is useless now, or None."""
        me, population = self._context.me, self._context.population
        if stage in self._context.unable:
            return self._context.unable[stage]
        if not population.rate(me, stage):
            return "this machine is too small for it"
        if self._refused.get(stage, (posting.mandate, -1)) >= (posting.mandate, posting.epoch):
            return f"it has {describe(posting)}"
        if population.score(me, stage, posting.fair) <= posting.cutoff:
            return f"its cutoff is above us: {describe(posting)}"
        if now < self._mute_until.get(stage, now):
            return "its steward does not answer"
        return None

    def decided(self, posting: Posting) -> bool:
        """Tell whether a stage that we wait for must have made our place final or rejected us."""
        score = self._context.population.score(self._context.me, posting.stage, posting.fair)
        return posting.phase == COMMITTED or score <= posting.cutoff

    def in_words(self, notices: Notices, now: float) -> str:
        """Return, in words, why each stage would reject us."""
        reasons = ((s, self.obstacle(s, n.posting, now)) for s, n in sorted(notices.items()))
        return "no place: " + "; ".join(f"stage {stage}: {why}" for stage, why in reasons)

    def retry_at(self, now: float) -> float:
        """Return when a steward that did not answer may be tried again, monotonic seconds."""
        mute = (until for until in self._mute_until.values() if until > now)
        return min(mute, default=float("inf"))


class Beside(Prospects):
    """The memory of a second seat's search."""

    def __init__(self, context: Context, home: Callable[[float], Stage | None]) -> None:
        super().__init__(context)
        self._home_at = home
        self._home: Stage | None = None
        self._look_at = INFINITY

    def wait_until(self, notices: Notices, now: float) -> float | None:
        """Return until when to wait before we ask, or None: every peer has a moment of its own, so
        that neighbours do not all choose the same stage."""
        home = self._home_at(now)
        if home != self._home:
            wait_s = LOOK_S * preferences.moment(Stage(0), self._context.me)
            self._home, self._look_at = home, INFINITY if home is None else now + wait_s
        if home is None:
            return INFINITY
        haste_s = HASTE_S * preferences.moment(Stage(0), self._context.me)
        if any(abs(stage - home) == 1 for stage in self._context.board.facts(now).empty):
            self._look_at = min(self._look_at, now + haste_s)
        if now < self._look_at:
            return self._look_at
        self._look_at = now + LOOK_S
        return None

    def retry_at(self, now: float) -> float:
        """Return when to look again, monotonic seconds."""
        return self._look_at

    def best(self, notices: Notices, now: float) -> Stage | None:
        """Return the stage to share our time with: one that lacks replicas, then the lower one."""
        hopes = [s for s, n in notices.items() if self.obstacle(s, n.posting, now) is None]
        levels = self._context.population.supply.levels

        def standing(stage: Stage) -> tuple[int, int]:
            posting = notices[stage].posting
            return min(posting.copies, posting.r), levels[stage]

        return min(hopes, key=standing, default=None)

    def obstacle(self, stage: Stage, posting: Posting, now: float) -> str | None:
        """Return why we should not hold a stage beside our home, or None."""
        me, population, home = self._context.me, self._context.population, self._home
        if home is None or abs(stage - home) != 1:
            return "it is not beside our main stage"
        if stage in self._context.unable or not population.fits_both(me, home, stage):
            return "we cannot hold both"
        if now < self._mute_until.get(stage, now):
            return "its steward does not answer"
        if posting.copies < posting.r:
            return None
        # a second stage is also averaged: at a step of ten minutes that takes a sixth of the link
        # of a volunteer that fetches its state in ten minutes
        if population.download_s(me, stage) > FETCH_S:
            return "we are too slow for two"
        return self.dear(stage, held=False)

    def dear(self, stage: Stage, *, held: bool) -> str | None:
        """Return that averaging a second stage takes too long, in words, or None."""
        added = self._context.population.averaging(self._context.me, stage)
        if added <= (DROP if held else WORTH):
            return None
        return f"averaging it takes more than it is worth: {added:.3g} times as long as a step"

    def in_words(self, notices: Notices, now: float) -> str:
        """Return, in words, why we hold no second stage if that is for its averaging."""
        reasons = ((s, self.obstacle(s, n.posting, now)) for s, n in sorted(notices.items()))
        dear = [f"stage {stage}: {why}" for stage, why in reasons if why and "averaging" in why]
        return f"no second stage: {'; '.join(dear)}" if dear else ""
