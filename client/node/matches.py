"""The node's answer to ``matches``: the state of the matching, and its explanations.

Pure functions of the engine's parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from client.control.matches import (
    MAX_EXPLANATIONS,
    Explanation,
    MatchesSnapshot,
    PayingMove,
    SeatMatch,
    StageMatch,
    StewardshipView,
)
from client.events import Entry, EventLog, LogLine
from client.train.engine import Engine
from protocol.ids import Stage
from protocol.matching.machine import Matching
from protocol.matching.overview import PHASES, StageOverview
from protocol.matching.preferences import MICRO
from protocol.matching.steward import Steward
from protocol.wire.parts import SeatStatus

NANO = 10**9


def describe_matching(engine: Engine, statuses: Sequence[SeatStatus]) -> MatchesSnapshot:
    """Describe the matching now.

    Args:
        engine: owner of the matching.
        statuses: of our seats.
    """
    matching, now = engine.matching, engine.now()
    overview = matching.overview(now) if matching else []
    return MatchesSnapshot(
        peer=engine.signer.peer,
        swarm=engine.swarm,
        swarm_name=engine.manifest.name,
        state=matching.state.value if matching else "measuring",
        seats=_seats(engine, matching, statuses, overview) if matching else [],
        stages=[_stage(seen, _seat_at(matching, seen.stage)) for seen in overview],
        paying_moves=_paying_moves(matching) if matching else [],
        stewardships=_stewardships(matching) if matching else [],
        refused=dict(matching.counters) if matching else {},
        explanations=explanations(engine.event_sink.log),
    )


def explanations(log: EventLog) -> list[Explanation]:
    """Return the newest explanations of the matching, oldest first."""
    entries = log.since(0, limit=log.last_seq).entries
    told = [
        entry for entry in entries if entry.topic == "matching" and entry.event.level != "debug"
    ]
    return [_explanation(entry) for entry in told[-MAX_EXPLANATIONS:]]


def _explanation(entry: Entry) -> Explanation:
    event = entry.event
    return Explanation(
        time=entry.time,
        level=event.level,
        words=event.words,
        members=event.about_members,
        decision=event.decision if isinstance(event, LogLine) else "",
    )


def _seats(
    engine: Engine,
    matching: Matching,
    statuses: Sequence[SeatStatus],
    overview: Sequence[StageOverview],
) -> list[SeatMatch]:
    """Return our seats, home first; one without a final place if there is none."""
    seen = {stage.stage: stage for stage in overview}
    if not matching.stages:
        stage = matching.tentative_stage
        return [_seat(0, stage, matching.state.value, seen)]
    states: dict[int, str] = {status.stage: status.state for status in statuses}
    seats = []
    for stage in sorted(matching.stages, key=lambda held: (matching.seat_of(held), held)):
        state = states.get(stage, "fetching")
        if stage == matching.home != matching.stage:
            state = "leaving"
        since = engine.event_sink.since.get(stage)
        seats.append(_seat(matching.seat_of(stage), stage, state, seen, since))
    return seats


def _seat(
    seat: int,
    stage: Stage | None,
    state: str,
    overview: Mapping[Stage, StageOverview],
    since: float | None = None,
) -> SeatMatch:
    seen = overview.get(stage) if stage is not None else None
    if seen is None:
        return SeatMatch(seat=seat, stage=stage, state=state, since=since)
    return SeatMatch(
        seat=seat,
        stage=stage,
        state=state,
        since=since,
        steward=seen.steward,
        epoch=seen.epoch,
        rate=seen.our_rate / MICRO,
        score=seen.our_score,
    )


def _seat_at(matching: Matching | None, stage: Stage) -> int | None:
    return matching.seat_of(stage) if matching and stage in matching.stages else None


def _stage(seen: StageOverview, seat: int | None) -> StageMatch:
    return StageMatch(
        stage=seen.stage,
        steward=seen.steward,
        term=seen.term,
        epoch=seen.epoch,
        phase=seen.phase,
        level=seen.level / MICRO,
        shared_level=seen.shared_level / MICRO,
        copies=seen.copies,
        redundancy=seen.r,
        quota=seen.quota / MICRO,
        cutoff=seen.cutoff,
        our_rate=seen.our_rate / MICRO,
        phi=seen.our_phi / MICRO,
        score=seen.our_score,
        urgent=seen.our_wish.urgent,
        wish_gain=seen.our_wish.gain / NANO,
        seat=seat,
        obstacle=seen.obstacle,
        stay=seen.stay,
    )


def _paying_moves(matching: Matching) -> list[PayingMove]:
    return [
        PayingMove(home=change.before.home, to=change.to) for change in matching.blocking_moves()
    ]


def _stewardships(matching: Matching) -> list[StewardshipView]:
    return [_stewardship(steward) for _, steward in sorted(matching.stewardships.items())]


def _stewardship(steward: Steward) -> StewardshipView:
    posting = steward.posting
    return StewardshipView(
        stage=steward.stage,
        term=posting.mandate.term,
        epoch=posting.epoch,
        phase=PHASES[posting.phase],
        places=posting.replicas,
        final=posting.locked_replicas,
        level=posting.level / MICRO,
        quota=posting.quota / MICRO,
    )
