"""For whom a replica says that it waits, and from when on."""

import pytest

from protocol.ids import PeerId
from protocol.pace import ANSWER_S, FORGET_S, LOST_S
from protocol.rounds.obstruction import FIRST_S, MOST_DOUBLINGS, TIMES, USUAL_TIMES, Obstruction
from protocol.rounds.shards import longest_s

ONE, TWO = PeerId("one"), PeerId("two")
NOBODY = frozenset[PeerId]()
TASK_S = 0.01


def used_to_rounds() -> Obstruction:
    made = Obstruction()
    made.planned(TWO, 0.0)
    made.closed(0.5)
    return made


def test_before_the_first_round_there_is_more_time() -> None:
    assert Obstruction().patience_s(TASK_S) == FIRST_S
    assert used_to_rounds().patience_s(0.0) == FIRST_S, "nobody knows how long a microbatch takes"
    assert 2 * ANSWER_S <= used_to_rounds().patience_s(TASK_S) < FIRST_S


def test_before_the_first_round_a_slow_line_has_its_time() -> None:
    """A stage of 155M parameters in S8 on 20 Mbit/s: a minute until the last contribution is here.
    Once a round was closed, that counts."""
    whole_s = longest_s(155_000_000, 130 / 128)
    assert longest_s(155_000_000, 0.5) == 248.0
    made = Obstruction(whole_s)
    assert made.expected_s() == whole_s
    for now in (0.0, 120.0):
        assert not made.claims([("contribution", ONE)], NOBODY, TASK_S, now)
    made.planned(TWO, 0.0)
    made.closed(0.5)
    assert made.patience_s(TASK_S) == used_to_rounds().patience_s(TASK_S)


@pytest.mark.parametrize("took_s", [1.0, 40.0])
def test_what_rounds_take_is_learnt_and_forgotten(took_s: float) -> None:
    made = Obstruction(500.0)
    made.planned(TWO, 0.0)
    made.closed(took_s)
    assert made.expected_s() == USUAL_TIMES * took_s
    for _ in range(12):
        made.planned(TWO, 100.0)
        made.closed(101.0)
    assert made.expected_s() == USUAL_TIMES


def test_in_the_first_round_what_comes_gives_the_rest_time() -> None:
    made = Obstruction()
    for second in range(0, 100, 10):
        assert made.claims([("sum", ONE), ("report", TWO)], NOBODY, TASK_S, second) in ((), (TWO,))
        made.arrived()
    assert made.claims([("sum", ONE)], NOBODY, TASK_S, 200.0) == ()
    assert made.claims([("sum", ONE)], NOBODY, TASK_S, 200.0 + TIMES["sum"] * FIRST_S) == (ONE,)
    known = used_to_rounds()
    known.claims([("sum", ONE)], NOBODY, TASK_S, 10.0)
    known.arrived()
    late = 10.0 + TIMES["sum"] * known.patience_s(TASK_S)
    assert known.claims([("sum", ONE)], NOBODY, TASK_S, late) == (ONE,)


def test_who_waits_for_a_sibling_itself_is_not_named() -> None:
    made = used_to_rounds()
    made.claims([("ready", ONE), ("ready", TWO)], frozenset({ONE}), TASK_S, 10.0)
    assert made.claims([("ready", ONE), ("ready", TWO)], frozenset({ONE}), TASK_S, 60.0) == (TWO,)


def test_what_is_leased_has_time_while_more_is_counted() -> None:
    made = used_to_rounds()
    for second in range(60):
        made.brought()
        assert not made.claims([("lease", ONE)], NOBODY, TASK_S, 10.0 + second)
    assert made.claims([("lease", ONE)], NOBODY, TASK_S, 90.0)


def test_the_loss_of_one_restarts_what_others_take_over_and_no_wait_for_a_peer_itself() -> None:
    made = used_to_rounds()
    shared, own = [("lease", ONE)], [("ready", TWO)]
    made.claims([*shared, *own], NOBODY, TASK_S, 10.0)
    made.lost_one(20.0)
    patience_s = made.patience_s(TASK_S)
    assert made.claims([*shared, *own], NOBODY, TASK_S, 20.0) == (TWO,)
    late = 20.0 + LOST_S + TIMES["lease"] * patience_s
    assert not made.claims(shared, NOBODY, TASK_S, late - 0.1)
    assert made.claims(shared, NOBODY, TASK_S, late) == (ONE,)


def test_a_new_plan_restarts_the_waits_but_for_its_leader() -> None:
    waits = [("report", ONE), ("ready", ONE), ("ready", TWO)]
    for leader, late in ((PeerId("three"), {ONE}), (TWO, {ONE, TWO})):
        made = used_to_rounds()
        made.claims(waits, NOBODY, TASK_S, 10.0)
        made.planned(leader, 30.0)
        assert set(made.claims(waits, NOBODY, TASK_S, 30.1)) == late


def test_a_closed_step_leaves_nothing() -> None:
    made = used_to_rounds()
    made.claims([("ready", ONE)], NOBODY, TASK_S, 10.0)
    made.closed(11.0)
    assert not made.claims([("ready", ONE)], NOBODY, TASK_S, 60.0)


def test_a_plan_is_given_up_when_nothing_comes_any_more_and_not_when_it_takes_long() -> None:
    made = Obstruction()
    made.lead(3, 100.0)
    assert made.given_up_at == 100.0 + FORGET_S
    assert not made.gives_up(3, made.given_up_at - 0.1)
    assert not made.gives_up(4, made.given_up_at), "something has come"
    assert made.gives_up(4, made.given_up_at)


def test_every_attempt_of_a_step_is_given_twice_as_long_within_bounds() -> None:
    made, now, waits = Obstruction(), 0.0, []
    for _ in range(MOST_DOUBLINGS + 3):
        made.lead(0, now)
        waits.append(made.given_up_at - now)
        now = made.given_up_at
        assert made.gives_up(0, now)
    doubled = [FORGET_S * 2**number for number in range(MOST_DOUBLINGS + 1)]
    assert waits == [*doubled, doubled[-1], doubled[-1]]
    made.closed(now)
    made.lead(0, now)
    assert made.given_up_at - now == FORGET_S
