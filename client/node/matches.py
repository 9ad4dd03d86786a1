"""What a node's status says of the matching. Pure functions of the engine's parts."""

from collections.abc import Sequence

from client.control.snapshot import MatchesView, PayingMove, SeatMatch, StageMatch
from client.train.engine import Engine
from protocol.matching.machine import Matching
from protocol.matching.overview import StageOverview
from protocol.matching.preferences import MICRO
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
        state=matching.state.value,
        seats=_seats(matching, statuses),
        stages=[_stage(seen, matching) for seen in matching.overview(now)],
        paying_moves=[
            PayingMove(home=change.before.home, to=change.to)
            for change in matching.blocking_moves()
        ],
        decides=sorted(matching.stewardships),
    )


def _seats(matching: Matching, statuses: Sequence[SeatStatus]) -> list[SeatMatch]:
    """Return our seats, home first; one without a final place if there is none."""
    if not matching.stages:
        return [SeatMatch(seat=0, stage=matching.tentative_stage, state=matching.state.value)]
    states: dict[int, str] = {status.stage: status.state for status in statuses}
    seats = []
    for stage in sorted(matching.stages, key=lambda held: (matching.seat_of(held), held)):
        state = states.get(stage, "fetching")
        if stage == matching.home != matching.stage:
            state = "leaving"
        seats.append(SeatMatch(seat=matching.seat_of(stage), stage=stage, state=state))
    return seats


def _stage(seen: StageOverview, matching: Matching) -> StageMatch:
    return StageMatch(
        stage=seen.stage,
        steward=seen.steward,
        shared_level=seen.shared_level / MICRO,
        redundancy=seen.r,
        seat=matching.seat_of(seen.stage) if seen.stage in matching.stages else None,
        obstacle=seen.obstacle,
        stay=seen.stay,
    )
