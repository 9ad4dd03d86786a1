"""The node's reports: its present errors, its progress and pace."""

import time

import pytest

from client.events import (
    Event,
    LogLine,
    PeerChanged,
    RecoveryEvent,
    StageAssigned,
    StageClosed,
)
from client.train.reporting.event_sink import SHOWN_S, EventSink, Pace
from protocol.effects import Explain
from protocol.ids import PeerId, peer_id_from_key, short
from protocol.manifest import Evaluation
from protocol.membership.losses import Believed
from protocol.pipeline.effects import Committed
from protocol.recovery.effects import GivenUp

PEER: PeerId = peer_id_from_key(bytes(32))


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def event_sink(told: list[Event]) -> EventSink:
    return EventSink(told.append)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


class TestLastError:
    @pytest.mark.parametrize(
        "said",
        [
            Explain("matching", "waiting for 1 more volunteer: stage 0 has none", "warning"),
            Explain("swarm", "training goes on from step 30: most follow it", "warning"),
            Explain("round", "step 3: nothing came any more; planning it anew", "warning"),
            Explain("pipeline", "microbatch 7 is late", "warning"),
            Explain("transfer", "fetched the state", "info"),
        ],
    )
    def test_what_mends_itself_is_none(self, event_sink: EventSink, said: Explain) -> None:
        event_sink.explain(said)
        event_sink.peer(PEER, "down", "silent for 5 s")
        assert event_sink.last_error is None

    @pytest.mark.parametrize(
        "said",
        [
            Explain("swarm", "no power limit: not allowed", "error"),
            Explain("transfer", "could not save version 7: disk full", "warning"),
        ],
    )
    def test_what_is_wrong_with_this_machine_is_one_for_a_while(
        self, event_sink: EventSink, clock: list[float], said: Explain
    ) -> None:
        event_sink.explain(said)
        assert event_sink.last_error == (said.words, 1000.0)
        clock[0] += SHOWN_S
        assert event_sink.last_error is not None
        clock[0] += 1.0
        assert event_sink.last_error is None

    def test_what_kept_us_from_a_stage_is_over_when_we_serve_it(
        self, event_sink: EventSink
    ) -> None:
        event_sink.explain(Explain("transfer", "stage 1: nobody gave it; trying again", "warning"))
        event_sink.assigned(1, "held", "the matching says so")
        assert event_sink.last_error is not None
        event_sink.assigned(1, "serving", "serving stage 1")
        assert event_sink.last_error is None

    def test_one_that_is_said_to_be_over_is_none(self, event_sink: EventSink) -> None:
        event_sink.explain(Explain("transfer", "could not save version 7: disk full", "error"))
        event_sink.explain(Explain("transfer", "saved", over="something else"))
        assert event_sink.last_error is not None
        over = "could not save version 7: disk full"
        event_sink.explain(Explain("transfer", "version 8 is saved", over=over))
        assert event_sink.last_error is None


def test_the_time_before_a_complete_run_was_extended_does_not_slow_its_pace() -> None:
    pace = Pace()
    for step in range(20):
        pace.note(30.0 * step, 1000 * step)
    assert pace.per_s() == pytest.approx(1000 / 30)
    night_s = 8 * 3600.0
    for step in range(20, 23):
        pace.note(night_s + 30.0 * step, 1000 * step)
    assert pace.per_s() == pytest.approx(1000 / 30)


def test_a_step_that_is_late_does_slow_the_pace() -> None:
    pace = Pace()
    for step in range(6):
        pace.note(30.0 * step, 1000 * step)
    pace.note(30.0 * 5 + 250.0, 6000)
    assert pace.per_s() == pytest.approx(6000 / 400)


def told_held_out(event_sink: EventSink, version: int, loss: float = 2.0) -> None:
    terms = Evaluation(every=10, microbatches=4, tokens=1000, size_bytes=4000)
    event_sink.evaluated(Believed(version, loss, vouchers=1, claims=2), terms)


def test_after_a_roll_back_what_comes_again_is_not_shown_from_before(
    event_sink: EventSink, told: list[Event]
) -> None:
    for step in range(30):
        event_sink.progressed(step, 3.0, 10 * step, float(step))
    told_held_out(event_sink, 20)
    event_sink.rolled_back(30)
    assert event_sink.progress is not None
    event_sink.rolled_back(20)
    assert event_sink.progress is None
    assert event_sink.held_out is not None, "it is of the version that is left"
    assert event_sink.pace.per_s() == 0.0
    assert [point.step for point in event_sink.curve.points(99)] == list(range(20))
    assert [point.step for point in event_sink.held_out_curve.points(99)] == [20]
    event_sink.rolled_back(19)
    assert event_sink.held_out is None
    assert event_sink.held_out_curve.points(99) == []


def test_of_a_version_the_same_number_is_told_once(
    event_sink: EventSink, told: list[Event]
) -> None:
    for loss in (2.0, 2.0, 1.5):
        told_held_out(event_sink, 20, loss)
    assert [event.loss for event in told] == [2.0, 1.5]
    assert [point.loss for point in event_sink.held_out_curve.points(9)] == [1.5]


def test_what_happens_is_told_whole(event_sink: EventSink, told: list[Event]) -> None:
    words, left = f"{short(PEER)} is up: linked", f"{short(PEER)} is down: silent"
    event_sink.peer(PEER, "up", "linked")
    event_sink.peer(PEER, "down", "silent")
    event_sink.closed(Committed(1, 8, "ab", 2.0, 0.5, counted=3, attempt=2, era=7))
    event_sink.assigned(1, "held", "it lacks replicas")
    event_sink.worker_died(ValueError("it was killed"))
    event_sink.explain(Explain("round", "asked again", "debug", (PEER,), "moves"))
    event_sink.survived("a Hello", ValueError("no"))
    what = {"stage": 1, "version": 8, "hash": "ab", "counted": 3, "attempt": 2, "era": 7}
    closed = StageClosed(words="stage 1 is at version 8", level="debug", grad_norm=0.5, **what)
    died = "it was killed; restarting it"
    assert told == [
        PeerChanged(words=words, level="info", peer=PEER, state="up", reason="linked"),
        PeerChanged(words=left, level="warning", peer=PEER, state="down", reason="silent"),
        closed,
        StageAssigned(words="it lacks replicas", level="debug", stage=1, state="held"),
        RecoveryEvent(words=died, fault="worker", phase="detected"),
        LogLine(
            words="asked again", level="debug", about="round", members=(PEER,), decision="moves"
        ),
        LogLine(words="internal error on a Hello: ValueError('no')", level="error"),
        LogLine(words="ValueError: no\n", level="debug"),
    ]


def test_steps_that_are_given_up_are_counted(event_sink: EventSink, told: list[Event]) -> None:
    event_sink.progressed(375, 3.0, 10, 1.0)
    event_sink.gave_up(GivenUp(version=376, steps=341, members=(PEER,), reached=388, fetched=()))
    given_up = told[-1]
    assert (given_up.steps, given_up.version, given_up.reached) == (341, 376, 388)
    assert given_up.members == (PEER,)
    assert event_sink.progress is None, "what is shown next is of the other line"
    assert event_sink.given_up.words == given_up.words
    event_sink.gave_up(GivenUp(version=36, steps=1, members=(PEER,), reached=37, fetched=()))
    assert event_sink.given_up.words.startswith("1 step made here without ")
