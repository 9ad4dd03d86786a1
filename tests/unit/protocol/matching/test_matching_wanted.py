"""A needy stage calls one volunteer after the other; a volunteer comes if its own view agrees."""

import pytest

from protocol.ids import Stage
from protocol.matching.board import Board
from protocol.matching.bodies import COMMITTED, Posting
from protocol.matching.context import Context
from protocol.matching.effects import Assign, Unassign
from protocol.matching.population import Population
from protocol.matching.seat import Bid, State
from protocol.matching.seats import Seats
from protocol.matching.timing import LOOK_S, NEXT_CALL_S, PASSED_OVER_S
from protocol.matching.wanted import Wanted
from protocol.wire.letters import Mandate
from tests.support.matching_examples import NOW, WALL_S, costs, member, peer

MICRO = 1_000_000
MANDATE = Mandate(int(WALL_S // 600), 1)
LOW, HIGH = Stage(0), Stage(1)
ME = peer(0)


def context(seen: tuple[int, int], wanted: str = "") -> Context:
    """Return our view of two stages of which the first calls ``wanted``; our home is the second."""
    stages = [LOW] * seen[0] + [HIGH] * seen[1]
    everybody = [member(n, held=[stage]) for n, stage in enumerate(reversed(stages))]
    population, board = Population(everybody, costs([1e9] * 2), 2), Board(2)
    board.observe(population, WALL_S)
    post(board, seen, NOW, wanted)
    return Context(ME, population, board, WALL_S - NOW)


def post(board: Board, copies: tuple[int, int], at: float, wanted: str = "") -> None:
    for stage, replicas in enumerate(copies):
        level = replicas * MICRO
        issued_ms = int((WALL_S + at - NOW) * 1000)
        posting = Posting(
            stage, MANDATE, issued_ms, 1, COMMITTED, level, replicas, level, replicas, 1, 1, 2, 0,
            wanted="" if stage else wanted,
        )  # fmt: skip
        board.pin(peer(1), posting, at)


def called(stage: Wanted, at: float) -> str | None:
    """Let time pass; return whom a stage calls then."""
    while stage.next_deadline() <= at:
        stage.tick((), max(stage.next_deadline(), NOW))
    return stage.peer


def at_once() -> Wanted:
    """Return an empty stage that has seen its need."""
    low = Wanted(context((0, 3)), LOW)
    low.tick((), NOW)
    low.look(NOW)
    return low


def test_a_served_stage_calls_within_a_minute() -> None:
    """Newcomers and second seats may help meanwhile."""
    low = Wanted(context((1, 3)), LOW)
    assert called(low, NOW + NEXT_CALL_S) is None
    assert called(low, NOW + LOOK_S - 1) is not None


def test_a_stage_does_not_call_while_somebody_comes_whom_the_view_does_not_show() -> None:
    low = at_once()
    low.tick({peer(77)}, NOW + NEXT_CALL_S)
    assert low.peer is None


def test_a_stage_that_is_not_the_neediest_calls_nobody() -> None:
    assert called(Wanted(context((0, 3)), HIGH), NOW + 10 * LOOK_S) is None


def test_whoever_does_not_come_makes_way_for_the_next() -> None:
    low = at_once()
    first, second = called(low, NOW + NEXT_CALL_S), called(low, NOW + NEXT_CALL_S + PASSED_OVER_S)
    assert first is not None
    assert second is not None
    assert first != second


def test_a_name_is_taken_back_once_its_owner_has_come() -> None:
    low = at_once()
    first = called(low, NOW + NEXT_CALL_S)
    assert first is not None
    low.tick({first}, NOW + NEXT_CALL_S + 1)
    assert low.peer is None


@pytest.mark.parametrize(("seen", "comes"), [((0, 2), True), ((2, 2), False), ((1, 2), False)])
def test_a_stage_is_left_only_if_our_own_view_agrees(seen: tuple[int, int], comes: bool) -> None:
    view = context(seen, ME)
    seats, notice = Seats(view), view.board.notices(NOW).get(HIGH)
    assert notice is not None
    seats.home.bid, seats.home.state = Bid.on(notice, 1), State.SERVING
    assert any(isinstance(effect, Assign) for effect in seats.look(NOW)) == comes


def with_two_seats(home: Stage) -> Seats:
    """Our home at a stage, and a second seat that serves the first."""
    view = context((2, 2))
    seats = Seats(view)
    for seat, stage in ((seats.home, home), (seats.second, LOW)):
        notice = view.board.notices(NOW).get(stage)
        assert notice is not None
        seat.bid, seat.state = Bid.on(notice, 1), State.SERVING
    return seats


def test_a_second_seat_is_weighed_again_and_again() -> None:
    seats = with_two_seats(HIGH)
    seats.tick(NOW)
    assert seats.next_deadline() == NOW + LOOK_S
    seats.second.due_at = NOW + 2
    assert seats.next_deadline() == NOW + 2
    seats.home.due_at = NOW + 1
    assert seats.next_deadline() == NOW + 1
    one = Seats(context((2, 2)))
    one.tick(NOW)
    assert one.next_deadline() == float("inf"), "there is no second seat to weigh"


def test_a_second_seat_is_given_up_once_the_home_is_no_neighbour() -> None:
    beside = with_two_seats(HIGH)
    assert beside.follow_home(NOW) == []
    assert beside.second.rests_at == LOW
    homeless = with_two_seats(HIGH)
    homeless.home.bid = None
    for seats in (with_two_seats(LOW), homeless):
        gone = [effect.stage for effect in seats.follow_home(NOW) if isinstance(effect, Unassign)]
        assert gone == [LOW]
        assert seats.second.bid is None
