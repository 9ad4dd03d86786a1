"""Every stage as one volunteer sees it, for interfaces. Pure functions of a context."""

from __future__ import annotations

from msgspec import Struct

from protocol.ids import PeerId, Stage
from protocol.matching.context import Context
from protocol.matching.gain import changes
from protocol.matching.preferences import MICRO
from protocol.matching.seats import Seats


class StageOverview(Struct, frozen=True, kw_only=True):
    """One stage."""

    stage: int
    steward: PeerId
    """The member that decides who holds it."""
    shared_level: float
    """Microbatches per second of its replicas together, after dual homing."""
    redundancy: int
    """Replicas it should have (r)."""
    seat: int | None
    """Our seat that holds it."""
    obstacle: str
    """Why a proposal there is useless now, in words; empty if it is not."""
    stay: str
    """Why a move there would not pay, in words; empty if it would, or without a home."""


def stage_overviews(context: Context, seats: Seats, now: float) -> list[StageOverview]:
    """Return every stage that has a posting, the most preferred first; none before we are a
    member."""
    notices, view = context.board.notices(now), context.population
    prospects = seats.home_seat.prospects
    if context.me not in view:
        return []
    order = sorted(notices, key=lambda s: prospects.wish(s, notices[s].posting), reverse=True)
    return [
        StageOverview(
            stage=stage,
            steward=notices[stage].author,
            shared_level=view.supply.levels[stage] / MICRO,
            redundancy=notices[stage].posting.r,
            seat=seats.seat_of(stage) if stage in seats.stages else None,
            obstacle=prospects.obstacle(stage, notices[stage].posting, now) or "",
            stay=_objection(context, stage),
        )
        for stage in order
    ]


def _objection(context: Context, stage: Stage) -> str:
    """Return why a move to a stage would not pay; empty if it would."""
    view = context.population
    why = [c.objection(view.supply, view) for c in changes(view, context.me, stage)]
    return why[-1] or "" if why and all(why) else ""
