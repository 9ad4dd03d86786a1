"""A volunteer's prospects: the stages that may accept it, and its preference among them.

State: refusals, stages that the machine cannot serve, and stewards that do not answer. Sends
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.ids import Stage
from protocol.matching import preferences
from protocol.matching.board import Notice, describe
from protocol.matching.bodies import Mandate, Posting
from protocol.matching.context import Context
from protocol.matching.timing import ABSENCE_S, MUTE_S

Notices = Mapping[Stage, Notice]


class Prospects:
    """The memory of one seat's search."""

    def __init__(self, context: Context) -> None:
        self.unable: dict[Stage, str] = {}
        self._context = context
        self._refused: dict[Stage, tuple[Mandate, int]] = {}
        self._mute_until: dict[Stage, float] = {}
        self._absence_since: float | None = None

    def refuse(self, stage: Stage, mandate: Mandate, epoch: int) -> None:
        """Remember that ``stage`` rejected us under ``mandate`` in ``epoch``."""
        self._refused[stage] = (mandate, epoch)

    def mute(self, stage: Stage, now: float) -> None:
        """Remember that a steward does not answer."""
        self._mute_until[stage] = now + MUTE_S

    def wait_until(self, notices: Notices, now: float) -> float | None:
        """Return until when to wait for the steward of a stage that has none, or None."""
        if len(notices) == len(self._context.population.costs):
            self._absence_since = None
            return None
        if self._absence_since is None:
            self._absence_since = now
        end = self._absence_since + ABSENCE_S
        return end if now < end else None

    def best(self, notices: Notices, now: float) -> Stage | None:
        """Return the stage of highest utility among those that may take us."""
        hopes = [s for s, n in notices.items() if self.obstacle(s, n.posting, now) is None]
        return max(hopes, key=lambda s: (self.wish(s, notices[s].posting), -s), default=None)

    def wish(self, stage: Stage, posting: Posting) -> preferences.Wish:
        """Return our utility of a stage, computed from its posting."""
        me, population = self._context.me, self._context.population
        return population.wish(
            me,
            stage,
            level=posting.locked_level,
            fair=posting.fair,
            replicas=posting.locked_replicas + posting.seconds,
            r=posting.r,
            relayed=self._context.relayed,
        )

    def obstacle(self, stage: Stage, posting: Posting, now: float) -> str | None:
        """Return why a proposal to a stage is useless now, or None.

        Args:
            stage: the stage.
            posting: its posting that counts.
            now: monotonic seconds.
        """
        me, population = self._context.me, self._context.population
        if stage in self.unable:
            return self.unable[stage]
        if not population.rate(me, stage):
            return "this machine is too small for it"
        if self._refused.get(stage, (posting.mandate, -1)) >= (posting.mandate, posting.epoch):
            return f"it has {describe(posting)}"
        if population.score(me, stage, posting.fair) <= posting.cutoff:
            return f"its cutoff is above us: {describe(posting)}"
        if now < self._mute_until.get(stage, now):
            return "its steward does not answer"
        return None

    def in_words(self, notices: Notices, now: float) -> str:
        """Return, in words, why each stage would reject us."""
        reasons = ((s, self.obstacle(s, n.posting, now)) for s, n in sorted(notices.items()))
        return "no place: " + "; ".join(f"stage {stage}: {why}" for stage, why in reasons)

    def retry_at(self, now: float) -> float:
        """Return when a steward that did not answer may be tried again, monotonic seconds."""
        mute = (until for until in self._mute_until.values() if until > now)
        return min(mute, default=float("inf"))
