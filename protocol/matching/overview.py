"""Every stage as one volunteer sees it, for interfaces. Pure functions of a context."""

from dataclasses import dataclass

from protocol.ids import PeerId, Stage
from protocol.matching.context import Context
from protocol.matching.gain import changes
from protocol.matching.prospects import Prospects


@dataclass(frozen=True, slots=True)
class StageOverview:
    """One stage."""

    stage: Stage
    steward: PeerId
    shared_level: int
    """After dual homing, in micro-microbatches per second."""
    r: int
    obstacle: str
    """Why a proposal there is useless now, in words; empty if it is not."""
    stay: str
    """Why a move there would not pay, in words; empty if it would, or without a home."""


def stage_overviews(context: Context, prospects: Prospects, now: float) -> list[StageOverview]:
    """Return every stage that has a posting, the most preferred first; none before we are a
    member."""
    notices, view = context.board.notices(now), context.population
    if context.me not in view:
        return []
    order = sorted(notices, key=lambda s: prospects.wish(s, notices[s].posting), reverse=True)
    return [
        StageOverview(
            stage=stage,
            steward=notices[stage].author,
            shared_level=view.supply.levels[stage],
            r=notices[stage].posting.r,
            obstacle=prospects.obstacle(stage, notices[stage].posting, now) or "",
            stay=_objection(context, stage),
        )
        for stage in order
    ]


def _objection(context: Context, stage: Stage) -> str:
    """Return why a move to a stage would not pay; empty if it would."""
    view = context.population
    why = [c.objection(view) for c in changes(view, context.me, stage)]
    return why[-1] or "" if why and all(why) else ""
