"""A round is given up when nothing comes any more, not when it takes long."""

from __future__ import annotations

import pytest

from protocol.rounds.patience import MOST_DOUBLINGS, ROUND_TIMEOUT_S, USUAL_TIMES, Patience


def test_it_runs_out_when_nothing_has_come() -> None:
    patience = Patience()
    patience.planned(3, 100.0)
    assert patience.until == 100.0 + ROUND_TIMEOUT_S
    assert not patience.ran_out(3, patience.until - 0.1)
    assert patience.ran_out(3, patience.until)
    assert f"{ROUND_TIMEOUT_S:.0f} s" in patience.words(7)


def test_not_while_something_comes() -> None:
    patience = Patience()
    patience.planned(0, 0.0)
    for here in range(1, 50):
        looked_at = patience.until
        assert not patience.ran_out(here, looked_at)
        assert patience.until == looked_at + ROUND_TIMEOUT_S
    assert patience.ran_out(here, patience.until)


def test_every_attempt_of_a_step_is_given_twice_as_long_within_bounds() -> None:
    patience, now, waits = Patience(), 0.0, []
    for _ in range(MOST_DOUBLINGS + 3):
        patience.planned(0, now)
        waits.append(patience.until - now)
        now = patience.until
        assert patience.ran_out(0, now)
    doubled = [ROUND_TIMEOUT_S * 2**number for number in range(MOST_DOUBLINGS + 1)]
    assert waits == [*doubled, doubled[-1], doubled[-1]]
    patience.start_step()
    patience.planned(0, now)
    assert patience.until - now == ROUND_TIMEOUT_S


def test_before_the_first_round_a_slow_line_has_its_time() -> None:
    patience = Patience(longest_s=500.0)
    patience.planned(0, 0.0)
    assert patience.until == 500.0
    patience.decided(20.0)
    patience.start_step()
    patience.planned(0, 100.0)
    assert patience.until == 100.0 + max(ROUND_TIMEOUT_S, USUAL_TIMES * 20.0)


@pytest.mark.parametrize(("took_s", "given_s"), [(1.0, 30.0), (15.0, 30.0), (40.0, 80.0)])
def test_what_rounds_take_is_learnt_and_forgotten(took_s: float, given_s: float) -> None:
    patience = Patience()
    patience.planned(0, 0.0)
    patience.decided(took_s)
    patience.planned(0, 100.0)
    assert patience.until - 100.0 == given_s
    for _ in range(10):
        patience.planned(0, 200.0)
        patience.decided(201.0)
    patience.planned(0, 300.0)
    assert patience.until - 300.0 == ROUND_TIMEOUT_S


def test_a_round_that_another_had_planned_teaches_nothing() -> None:
    """A leader died, and we complete what it may have decided: we never planned it."""
    patience = Patience()
    patience.start_step()
    patience.decided(80_000.0)
    patience.planned(0, 80_001.0)
    assert patience.until == 80_001.0 + ROUND_TIMEOUT_S
