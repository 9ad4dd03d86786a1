"""The event log: in order, bounded, and honest about what a slow reader missed."""

from client.events import MAX_PAGE, EventLog, LogLine, StepCommitted


def test_readers_see_every_event_once_and_in_order() -> None:
    log = EventLog(capacity=2 * MAX_PAGE)
    assert (log.since(0).entries, log.since(0).missed) == ((), 0)
    for step in range(MAX_PAGE + 2):
        log.append(StepCommitted(words="step", step=step, loss=1.0, tokens=step), 100.0 + step)
    first = log.since(0)
    second = log.since(first.entries[-1].seq)
    seqs = [entry.seq for page in (first, second) for entry in page.entries]
    assert seqs == list(range(1, MAX_PAGE + 3))
    assert log.since(MAX_PAGE + 2).entries == ()
    assert log.since(9999) == log.since(MAX_PAGE + 2)


def test_a_slow_reader_learns_what_it_missed() -> None:
    log = EventLog(capacity=4)
    for n in range(10):
        log.append(LogLine(words=str(n)), 0.0)
    page = log.since(2)
    assert page.missed == 4
    assert [entry.event.words for entry in page.entries] == ["6", "7", "8", "9"]
