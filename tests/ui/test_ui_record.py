"""The record of a stream of updates, and the values derived from it."""

from client.control.snapshot import NetworkView
from client.control.updates import StepPoint
from client.views.record import MAX_EVENTS, Record, Traffic
from tests.ui.examples import ANNA, NOW, evaluated, event, recorded_from, step, update


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


def test_held_out_losses_of_the_node_and_of_its_events_are_one_curve() -> None:
    record = recorded_from(update(9, *(step(n, n) for n in range(1, 6)), evaluated(6, 4, 3.5)))
    record.learn_curve([], [StepPoint(0, NOW, 5.5), StepPoint(4, NOW, 9.9)])
    assert [point.loss for point in record.held_out.points()] == [5.5, 3.5]


def test_rates_are_those_of_the_last_five_seconds() -> None:
    record = Record()
    assert record.rates == Traffic(0.0, 0.0)
    for second in range(9):
        moved = NetworkView(sent_bytes=100 * second**2, received_bytes=second)
        record.apply(update(second, network=moved, tokens_per_s=float(second)))
    assert record.rates == Traffic((6400 - 900) / 5, 1.0)
    assert (len(record.traffic), [*record.speeds]) == (8, [*range(9)])
    record.apply(update(9, network=NetworkView(sent_bytes=1)))
    assert record.rates == Traffic(0.0, 0.0), "it was started again"
