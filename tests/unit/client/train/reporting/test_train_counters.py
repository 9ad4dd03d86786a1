"""What our seats have done in all, and when a recovery begins and is over."""

from typing import Any, cast

from client.events import RecoveryEvent
from client.train.ports import Ports
from client.train.reporting.counters import Counting
from client.train.reporting.event_sink import EventSink
from protocol.pipeline.effects import Committed, Rerouted
from tests.support.protocol_examples import peer


class Said:
    """A clock, and what is reported."""

    def __init__(self) -> None:
        self.time, self.reports = 0.0, list[tuple[Any, ...]]()
        self.closed_steps = list[Committed]()

    def now(self) -> float:
        return self.time

    def publish(self, event: RecoveryEvent) -> None:
        self.reports.append((event.words, event.fault, event.phase, event.step, event.peer))

    def closed(self, committed: Committed) -> None:
        self.closed_steps.append(committed)


def counters() -> tuple[Counting, Said]:
    said = Said()
    return Counting(cast(Ports, said), cast(EventSink, said)), said


def committed(version: int, *, counted: int = 0, attempt: int = 1) -> Committed:
    return Committed(0, version, "", None, 0.0, counted, attempt)


def rerouted(step: int, *, replayed: bool = False) -> Rerouted:
    return Rerouted(step, 40, peer(1), "a replica is lost", replayed)


def test_steps_are_added_up() -> None:
    made, said = counters()
    for version, attempt in ((1, 1), (2, 3), (3, 0)):
        made.note_committed(committed(version, counted=4, attempt=attempt))
    assert (made.seen.rounds_committed, made.seen.rounds_restarted) == (3, 2)
    assert [one.version for one in said.closed_steps] == [1, 2, 3]


def test_a_recovery_lasts_from_the_first_rerouted_microbatch_to_its_gradient() -> None:
    made, said = counters()
    said.time = 10.0
    made.note_rerouted(1, rerouted(5))
    said.time = 11.0
    made.note_rerouted(1, rerouted(6, replayed=True))
    assert (made.seen.rerouted_microbatches, made.seen.lost_microbatches) == (2, 1)
    words = "a replica is lost: its microbatches go to other replicas"
    assert said.reports == [(words, "peer", "detected", 5, peer(1))], "it is said once"
    said.time = 12.5
    made.note_gradient(1, 5, 39)
    made.note_gradient(2, 5, 40)
    assert len(said.reports) == 1
    made.note_gradient(1, 5, 40)
    words = "first gradient of a re-routed microbatch 2.50 s after detection"
    assert said.reports[1:] == [(words, "peer", "recovered", 5, None)]
    made.note_gradient(1, 5, 40)
    assert len(said.reports) == 2, "that is said once, too"


def test_a_step_that_is_closed_without_the_gradient_ends_the_recovery_in_silence() -> None:
    made, said = counters()
    made.note_rerouted(1, rerouted(5))
    made.note_committed(committed(5))
    made.note_gradient(1, 5, 40)
    assert len(said.reports) == 2, "version 5 is what step 5 begins with"
    made.note_rerouted(1, rerouted(5))
    made.note_committed(committed(6))
    made.note_gradient(1, 5, 40)
    assert len(said.reports) == 3
    made.note_rerouted(1, rerouted(6))
    assert len(said.reports) == 4, "the next loss is another recovery"
