"""What a node's status says of the matching. Pure functions of the engine's parts."""

from client.control.snapshot import MatchesView, PayingMove, StageMatch
from client.train.engine import Engine
from protocol.ids import Stage
from protocol.matching.board import Notice
from protocol.matching.gain import changes
from protocol.matching.machine import Matching
from protocol.matching.preferences import MICRO


def describe_matching(engine: Engine) -> MatchesView | None:
    """Describe the matching now; None before it has begun."""
    matching, now = engine.matching, engine.now()
    if matching is None:
        return None
    home = matching.seats.home
    return MatchesView(
        state=home.state.value,
        asked=None if home.bid is None else home.bid.stage,
        stages=_stages(matching, now),
        paying_moves=[
            PayingMove(home=change.before[0], to=change.to) for change in matching.blocking_moves()
        ],
        decides=sorted(matching.stewardships.held),
    )


def _stages(matching: Matching, now: float) -> list[StageMatch]:
    """Return every stage that has a posting, the most preferred first; none before we are a
    member."""
    context, prospects = matching.context, matching.seats.home.prospects
    view = context.population
    if context.me not in view:
        return []

    def described(stage: Stage, notice: Notice) -> StageMatch:
        against = [change.objection(view) for change in changes(view, context.me, stage)]
        return StageMatch(
            stage=stage,
            steward=notice.author,
            shared_level=view.supply.levels[stage] / MICRO,
            redundancy=notice.posting.r,
            obstacle=prospects.obstacle(stage, notice.posting, now) or "",
            stay=against[-1] or "" if against and all(against) else "",
        )

    notices = context.board.notices(now)
    order = sorted(notices, key=lambda s: prospects.wish(s, notices[s].posting), reverse=True)
    return [described(stage, notices[stage]) for stage in order]
