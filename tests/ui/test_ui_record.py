"""The record of a stream of updates, and the values derived from it."""

from msgspec.structs import replace

from client.control.snapshot import HeldOutView, SeatView
from client.control.updates import StepPoint
from client.ui.header import header
from client.ui.leaving import finishing
from client.ui.source.news import Link
from client.views.dashboard import loss
from client.views.record import MAX_EVENTS, Record
from client.views.span import Box, plain
from client.views.status import drain_words
from tests.ui.examples import (
    ANNA,
    NOW,
    evaluated,
    event,
    recorded_from,
    snapshot,
    step,
    update,
)

WIDE, NARROW = Box(200), Box(80)
LIVE = Link("live")


def test_events_are_taken_once_and_steps_make_the_curve() -> None:
    record = recorded_from(
        update(1, step(1, 0, 3.0), step(2, 1, 2.5)), update(2, step(2, 1, 2.5), step(3, 2, 2.0))
    )
    assert [e.seq for e in record.events] == [1, 2, 3]
    record.learn_curve([StepPoint(0, NOW, 9.0, 1.0)])
    losses = [(p.step, p.loss) for p in record.losses.points()]
    assert losses == [(0, 3.0), (1, 2.5), (2, 2.0)]


def test_nothing_grows_without_bound() -> None:
    record = Record()
    for number in range(60):
        events = [step(100 * number + n + 1, 100 * number + n) for n in range(100)]
        record.apply(update(number, *events))
    assert len(record.events) == MAX_EVENTS
    assert len(record.traffic) <= 240


def test_a_node_that_was_started_again_is_heard_again() -> None:
    record = recorded_from(update(1, event(2), pid=1))
    again = [event(n, f"back {n}", time=NOW + 900) for n in (1, 2, 3)]
    record.apply(update(900, *again[:1], pid=2))
    record.apply(update(901, *again, pid=2))
    assert [e.words for e in record.events][1:] == ["back 1", "back 2", "back 3"]


def test_another_node_begins_a_new_record() -> None:
    record = recorded_from(update(1, step(1, 0)), update(2, peer=ANNA))
    assert not record.events
    assert not record.losses.points()


def test_the_state_is_said_once_and_leaving_is_no_question_any_more() -> None:
    waits = recorded_from(update(1, state="waiting", reason="waiting for 1 more volunteer"))
    assert "WAITING for 1 more volunteer" in plain(header(waits, LIVE, Box(80, 4)))
    leaves = plain(header(recorded_from(update(1, state="stopping")), LIVE, Box(80, 4)))
    assert "afterwards    stage 0 keeps 1 volunteer" in leaves
    assert "if you leave" not in leaves


def test_held_out_losses_are_drawn_beside_those_of_training() -> None:
    record = recorded_from(update(9, *(step(n, n) for n in range(1, 6)), evaluated(6, 4, 3.5)))
    record.learn_curve([], [StepPoint(0, NOW, 5.5), StepPoint(4, NOW, 9.9)])
    told = HeldOutView(
        version=4, loss=3.5, bits_per_byte=5.05, tokens=8192, vouchers=2, claims=3, time=NOW
    )
    assert [point.loss for point in record.held_out.points()] == [5.5, 3.5]
    record.snapshot = replace(record.snapshot, held_out=told)
    lines = loss(record, Box(70, 16))
    assert "held out  3.500 at step 4, 5.050 bits/byte, told by 2 of 3 members" in plain(lines)
    assert any(span.tone == "second" for line in lines[2:] for span in line)
    alone = replace(record.snapshot, held_out=replace(told, vouchers=1, claims=1))
    record.snapshot = alone
    assert "one member's claim" in plain(loss(record, Box(80, 12)))


# --- header ----------------------------------------------------------------------------------


def test_header_says_state_reason_cover_and_last_error() -> None:
    known = {"last_error": "the disk is full", "last_error_at": NOW - 199}
    waits = event(1, "waiting for 1 more volunteer: stage 0 has none", level="warning")
    record = recorded_from(update(1, waits, **known))
    for box in (WIDE, NARROW):
        found = header(record, LIVE, box)
        text = plain(found)
        assert len(found) == 4
        assert "TRAINING" in text
        assert "you serve stage 0; every stage has a volunteer" in text
        assert "stage 0 keeps 1 volunteer: training goes on" in text
        assert "last error  3 min 20 s ago the disk is full" in text


def test_a_long_state_takes_a_second_line_where_no_error_needs_it() -> None:
    words = "about 2 h 10 min left; you serve stage 0; every stage has a volunteer"
    record = recorded_from(update(9, step=6, steps=16, eta_s=7800.0))
    found = header(record, LIVE, NARROW)
    assert len(found) == 4
    assert " ".join(plain(found[1:3]).split()).endswith(words)
    assert all(len(plain([line])) <= 80 for line in found)
    record.snapshot = replace(record.snapshot, last_error="the disk is full")
    found = header(record, LIVE, NARROW)
    assert len(found) == 4
    assert "the disk is full" in plain(found[3:])


def test_last_replica_is_a_warning_everywhere() -> None:
    last = [SeatView(stage=1, version=5, state="serving", staying=0)]
    assert drain_words(snapshot(seats=last)) == (
        "stage 1 would have nobody: the swarm would wait",
        "warn",
    )
    assert drain_words(snapshot(seats=[]))[0] == "nothing changes: you serve no stage"
    found = finishing(recorded_from(update(1, seats=last)), Link("live"))
    assert found.tone == "warn"
    assert "would have nobody" in found.words


# --- peers and logs --------------------------------------------------------------------------
