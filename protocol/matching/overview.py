"""The overview: every stage as one volunteer sees it, with the terms of its preference.

Pure functions of a context, for interfaces: the preference list with its numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import PeerId, Stage
from protocol.matching.board import Notice
from protocol.matching.context import Context
from protocol.matching.gain import changes
from protocol.matching.preferences import Wish
from protocol.matching.prospects import Prospects

PHASES = ("open", "quiet", "committed")


@dataclass(frozen=True, slots=True)
class StageOverview:
    """One stage. Rates and levels in micro-microbatches per second, phi in parts per million."""

    stage: Stage
    steward: PeerId
    term: int
    epoch: int
    phase: str
    level: int
    shared_level: int
    """After dual homing."""
    copies: int
    r: int
    quota: int
    cutoff: int
    our_rate: int
    our_phi: int
    our_score: int
    our_wish: Wish
    obstacle: str
    """Why a proposal there is useless now, in words; empty if it is not."""
    stay: str
    """Why a move there would not pay, in words; empty if it would, or without a home."""


def stage_overviews(context: Context, prospects: Prospects, now: float) -> list[StageOverview]:
    """Return every stage that has a posting, the most preferred first.

    Args:
        context: our view.
        prospects: refusals and stages that this machine cannot serve.
        now: monotonic seconds.
    """
    notices = context.board.notices(now).items()
    found = [_overview(context, prospects, stage, notice, now) for stage, notice in notices]
    return sorted(found, key=lambda seen: (seen.our_wish, -seen.stage), reverse=True)


def _overview(
    context: Context,
    prospects: Prospects,
    stage: Stage,
    notice: Notice,
    now: float,
) -> StageOverview:
    posting, population, me = notice.posting, context.population, context.me
    known = me in population
    return StageOverview(
        stage=stage,
        steward=notice.author,
        term=posting.mandate.term,
        epoch=posting.epoch,
        phase=PHASES[posting.phase],
        level=posting.level,
        shared_level=population.supply.levels[stage],
        copies=posting.copies,
        r=posting.r,
        quota=posting.quota,
        cutoff=posting.cutoff,
        our_rate=population.rate(me, stage),
        our_phi=population.phi(me, stage) if known else 0,
        our_score=population.score(me, stage, posting.fair) if known else 0,
        our_wish=prospects.wish(stage, posting, now) if known else Wish(False, 0, 0),
        obstacle=prospects.obstacle(stage, posting, now) or "" if known else "not a member yet",
        stay=_objection(context, stage),
    )


def _objection(context: Context, stage: Stage) -> str:
    """Return why a move to a stage would not pay; empty if it would."""
    view = context.population
    why = [c.objection(view.supply, view) for c in changes(view, context.me, stage)]
    return why[-1] or "" if why and all(why) else ""
