"""Who is told our ledger, when, and when again."""

from protocol.pace import ANSWER_S, LOOK_S
from protocol.pipeline.microbatches import Phase, StepWork
from protocol.seat.reporting import Reporting
from tests.support.protocol_examples import peer

FIRST, SECOND, THIRD = (peer(n) for n in range(3))
LINE = [FIRST, SECOND, THIRD]
STEP = 3


def work(revision: int = 1, *, in_flight: bool = False, done: bool = False) -> StepWork:
    made = StepWork(8)
    made.phases[Phase.DONE] = {0} if done else set()
    made.revision = revision
    made.in_flight = {1} if in_flight else set()
    return made


def test_the_leader_is_told_at_once_and_again_later() -> None:
    made = Reporting()
    assert made.due(LINE, STEP, work(), 0.0) == [FIRST]
    assert made.number == 1
    assert made.due(LINE, STEP, work(), ANSWER_S - 0.1) == []
    assert made.due([SECOND, FIRST], STEP, work(), ANSWER_S - 0.1) == [SECOND], "it leads now"
    assert made.number == 2
    assert made.due([SECOND], STEP, work(), 2 * ANSWER_S - 0.1) == [SECOND], "it may be lost"


def test_the_next_in_line_are_told_as_time_goes_on() -> None:
    made, told = Reporting(), set()
    for tenth in range(100):
        told.update(made.due(LINE, STEP, work(), tenth / 10))
        expected = 1 + (tenth / 10 >= 2 * LOOK_S) + (tenth / 10 >= 4 * LOOK_S)
        assert told == set(LINE[:expected])
    assert made.due(LINE, STEP + 1, work(), 10.0) == [FIRST], "of the next step only the leader"


def test_once_nothing_is_in_flight_two_more_are_told() -> None:
    """So that two of them that are honest know when the whole step is counted."""
    made = Reporting()
    assert made.due([*LINE, peer(3)], STEP, work(1, in_flight=True, done=True), 0.0) == [FIRST]
    assert made.due([*LINE, peer(3)], STEP, work(2, done=True), 0.1) == LINE


def test_what_is_new_is_told_at_once_or_while_work_is_in_flight_soon() -> None:
    made = Reporting()
    made.due([FIRST], STEP, work(1), 0.0)
    assert made.due([FIRST], STEP, work(2, in_flight=True), 0.1) == []
    assert made.due([FIRST], STEP, work(3, in_flight=True), 0.3) == [], "it puts nothing off"
    assert made.due([FIRST], STEP, work(3, in_flight=True), ANSWER_S) == [FIRST]
    assert made.due([FIRST], STEP, work(4), ANSWER_S + 0.1) == [FIRST]
