"""The event log: in order, bounded, and honest about what a slow reader missed."""

from client.control.updates import EVENTS_AT_ONCE
from client.events import LogLine, StepCommitted
from client.train.reporting.event_sink import EventLog


def test_readers_see_every_event_once_and_in_order() -> None:
    log = EventLog(capacity=2 * EVENTS_AT_ONCE)
    assert log.since(0) == ([], 0)
    for step in range(EVENTS_AT_ONCE + 2):
        log.append(StepCommitted(words="step", step=step, loss=1.0, tokens=step), 100.0 + step)
    first, _ = log.since(0)
    second, _ = log.since(first[-1].seq)
    assert [event.seq for event in (*first, *second)] == list(range(1, EVENTS_AT_ONCE + 3))
    assert log.since(EVENTS_AT_ONCE + 2) == log.since(9999) == ([], 0)


def test_a_slow_reader_learns_what_it_missed() -> None:
    log = EventLog(capacity=4)
    for n in range(10):
        log.append(LogLine(words=str(n)), 0.0)
    events, missed = log.since(2)
    assert missed == 4
    assert [event.words for event in events] == ["6", "7", "8", "9"]
