"""What a node's status says of the matching. Pure functions of the engine's parts."""

from collections.abc import Sequence

from client.control.snapshot import MatchesView, PayingMove, SeatMatch, StageMatch
from client.train.engine import Engine
from protocol.ids import Stage
from protocol.matching.board import Notice
from protocol.matching.gain import changes
from protocol.matching.machine import Matching
from protocol.matching.preferences import MICRO
from protocol.matching.seats import Seats
from protocol.wire.parts import SeatStatus


def describe_matching(engine: Engine, statuses: Sequence[SeatStatus]) -> MatchesView | None:
    """Describe the matching now; None before it has begun.

    Args:
        engine: owner of the matching.
        statuses: of our seats.
    """
    matching, now = engine.matching, engine.now()
    if matching is None:
        return None
    return MatchesView(
        state=matching.seats.home.state.value,
        seats=_seats(matching.seats, statuses),
        stages=_stages(matching, now),
        paying_moves=[
            PayingMove(home=change.before[0], to=change.to) for change in matching.blocking_moves()
        ],
        decides=sorted(matching.stewardships.held),
    )


def _seats(seats: Seats, statuses: Sequence[SeatStatus]) -> list[SeatMatch]:
    """Return our seats, home first; one without a final place if there is none."""
    home = seats.home
    if not seats.stages:
        asked = None if home.bid is None else home.bid.stage
        return [SeatMatch(seat=0, stage=asked, state=home.state.value)]
    states: dict[int, str] = {status.stage: status.state for status in statuses}
    found = []
    for stage in sorted(seats.stages, key=lambda held: (seats.seat_of(held), held)):
        state = states.get(stage, "fetching")
        if stage == home.advertised != home.stage:
            state = "leaving"
        found.append(SeatMatch(seat=seats.seat_of(stage), stage=stage, state=state))
    return found


def _stages(matching: Matching, now: float) -> list[StageMatch]:
    """Return every stage that has a posting, the most preferred first; none before we are a
    member."""
    context, seats = matching.context, matching.seats
    view, prospects = context.population, seats.home.prospects
    if context.me not in view:
        return []

    def described(stage: Stage, notice: Notice) -> StageMatch:
        against = [change.objection(view) for change in changes(view, context.me, stage)]
        return StageMatch(
            stage=stage,
            steward=notice.author,
            shared_level=view.supply.levels[stage] / MICRO,
            redundancy=notice.posting.r,
            seat=seats.seat_of(stage) if stage in seats.stages else None,
            obstacle=prospects.obstacle(stage, notice.posting, now) or "",
            stay=against[-1] or "" if against and all(against) else "",
        )

    notices = context.board.notices(now)
    order = sorted(notices, key=lambda s: prospects.wish(s, notices[s].posting), reverse=True)
    return [described(stage, notices[stage]) for stage in order]
