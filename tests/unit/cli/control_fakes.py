"""A provider that stands in for the node, and short socket paths."""

from __future__ import annotations

from client.control.snapshot import (
    Counters,
    EventView,
    NetworkView,
    Replica,
    SeatView,
    Snapshot,
    StageView,
    WorkerView,
)
from client.events import Entry, LogLine


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
        "seats": [SeatView(stage=0, version=3, state="serving")],
        "stages": [
            StageView(
                stage=0,
                layers=2,
                version=3,
                replicas=[
                    Replica(peer="12D3KooWexamplepeer", version=3, state="serving", rate=1.5)
                ],
            ),
            StageView(stage=1, layers=2, version=3),
        ],
        "peers": [],
        "network": NetworkView(sent_bytes=1, received_bytes=2, links=1),
        "worker": WorkerView(state="running", pid=8),
        "counters": Counters(),
        "rss_bytes": 1000,
        "uptime_s": 12.5,
    }
    return Snapshot(**{**fields, **changes})  # type: ignore[arg-type]


class FakeProvider:
    """Remembers stops; ``event_count`` events of ``event_size_bytes`` each."""

    def __init__(self, event_count: int = 3, event_size_bytes: int = 10) -> None:
        self.stops = 0
        self.failure: Exception | None = None
        line = LogLine(words="x" * event_size_bytes, about="round")
        entries = (Entry(seq, float(seq), line) for seq in range(1, event_count + 1))
        self._events = [EventView.of(entry) for entry in entries]

    def snapshot(self) -> Snapshot:
        if self.failure is not None:
            raise self.failure
        return example_snapshot()

    def events(self, since: int) -> list[EventView]:
        return [event for event in self._events if event.seq > since]

    def stop(self) -> None:
        self.stops += 1
