"""A provider that stands in for the node, and short socket paths."""

import os

from client.control.methods import Impossible
from client.control.snapshot import (
    Amended,
    Counters,
    EventView,
    InvitedMember,
    InviteView,
    MatchesView,
    NetworkView,
    PauseView,
    PayingMove,
    ReplicaView,
    SeatView,
    Snapshot,
    StageMatch,
    StageView,
    WorkerView,
)
from client.control.updates import EVENTS_AT_ONCE, Curve, StepPoint, Update
from client.events import LogLine
from protocol.amendments.changes import Changes


def example_snapshot(**changes: object) -> Snapshot:
    """Return a full snapshot; ``changes`` replace fields."""
    fields: dict[str, object] = {
        "version": "0.1.0",
        "pid": 7,
        "peer": "12D3KooWexamplepeer",
        "swarm": "ab" * 32,
        "swarm_name": "example",
        "state": "training",
        "reason": "all stages are covered",
        "step": 3,
        "steps": 10,
        "loss": 2.5,
        "tokens_per_s": 100.0,
        "own_tokens_per_s": 50.0,
        "seats": [SeatView(stage=0, version=3, state="serving", staying=2)],
        "stages": [
            StageView(
                stage=0,
                layers=2,
                version=3,
                replicas=[
                    ReplicaView(peer="12D3KooWexamplepeer", version=3, state="serving", rate=1.5)
                ],
            ),
            StageView(stage=1, layers=2, version=3),
        ],
        "peers": [],
        "network": NetworkView(sent_bytes=1, received_bytes=2, links=1),
        "workers": [WorkerView(pid=8)],
        "counters": Counters(),
        "rss_bytes": 1000,
        "uptime_s": 12.5,
    }
    return Snapshot(**{**fields, **changes})  # type: ignore[arg-type]


def example_invite(**changes: object) -> InviteView:
    """Return an invite that names one member."""
    member = "/ip4/203.0.113.7/tcp/4001/p2p/12D3KooWQVJeEspFqUfxUYGgL7GTpevs1mT5aLgaFYv7TSjBuRer"
    invite = f"volunteer:{'ab' * 32}?peer={member}"
    fields: dict[str, object] = {
        "swarm": "ab" * 32,
        "swarm_name": "example",
        "invite": invite,
        "file": "{}",
        "members": [member],
    }
    return InviteView(**{**fields, **changes})  # type: ignore[arg-type]


def example_stage(**changes: object) -> StageMatch:
    """Return a stage of somebody else's."""
    fields: dict[str, object] = {
        "stage": 1,
        "steward": "12D3KooWsteward",
        "shared_level": 1.1,
        "redundancy": 2,
        "obstacle": "its cutoff is above us: 1 of 2 replicas, 1.25 of 1.26 microbatches/s",
        "stay": "the lower of the two stages would not rise",
    }
    return StageMatch(**{**fields, **changes})  # type: ignore[arg-type]


def example_matches(**changes: object) -> MatchesView:
    """Return what a status says of the matching; ``changes`` replace fields."""
    fields: dict[str, object] = {
        "state": "serving",
        "stages": [example_stage(stage=0, obstacle="", stay=""), example_stage()],
        "paying_moves": [PayingMove(home=0, to=1)],
        "decides": [1],
    }
    return MatchesView(**{**fields, **changes})  # type: ignore[arg-type]


class FakeProvider:
    """Remembers stops; has ``event_count`` events of ``event_size_bytes`` each, and a status with
    ``changes``."""

    def __init__(self, event_count: int = 3, event_size_bytes: int = 10, **changes: object) -> None:
        self._changes = changes
        self.stops = 0
        self.failure: Exception | None = None
        self.paused: PauseView | None = None
        line = LogLine(words="x" * event_size_bytes, about="round")
        self._events = [EventView.of(n, float(n), line) for n in range(1, event_count + 1)]

    def status(self) -> Snapshot:
        if self.failure is not None:
            raise self.failure
        usual = {"pid": os.getpid(), "paused": self.paused, "matches": example_matches()}
        return example_snapshot(**{**usual, **self._changes})

    def update(self, since: int = 0) -> Update:
        events = [event for event in self._events if event.seq > since][:EVENTS_AT_ONCE]
        return Update(time=1.0, snapshot=self.status(), events=events)

    def finish(self, *, discard: bool = False) -> None:
        self.stops += 1

    def history(self, points: int) -> Curve:
        return Curve([StepPoint(n, float(n), 5.0 - n, 10.0) for n in range(4)][-points:])

    def pause(self, until: float | None, reason: str, *, discard: bool = False) -> PauseView:
        self.paused = PauseView(reason=reason or "you paused it", until=until, since=1.0)
        return self.paused

    def resume(self) -> bool:
        was, self.paused = self.paused, None
        return was is not None

    def invite(self, *, once: bool = False, life_s: float | None = None) -> InviteView:
        return example_invite()

    def amend(self, changes: Changes, *, sign: bool) -> Amended:
        raise Impossible("only the founder of this swarm, somebody, can change its run")

    def expel(self, member: str, reason: str) -> InvitedMember:
        raise Impossible("nobody vouches for anybody in this swarm, so nobody is expelled")
