"""A round is given up when nothing comes any more, not when it takes long."""

from __future__ import annotations

from protocol.pace import FORGET_S
from protocol.rounds.patience import MOST_DOUBLINGS, Patience


def test_it_runs_out_when_nothing_has_come() -> None:
    patience = Patience(lambda: 0.0)
    patience.planned(3, 100.0)
    assert patience.until == 100.0 + FORGET_S
    assert not patience.ran_out(3, patience.until - 0.1)
    assert patience.ran_out(3, patience.until)
    assert f"{FORGET_S:.0f} s" in patience.words(7)


def test_every_attempt_of_a_step_is_given_twice_as_long_within_bounds() -> None:
    patience, now, waits = Patience(lambda: 0.0), 0.0, []
    for _ in range(MOST_DOUBLINGS + 3):
        patience.planned(0, now)
        waits.append(patience.until - now)
        now = patience.until
        assert patience.ran_out(0, now)
    doubled = [FORGET_S * 2**number for number in range(MOST_DOUBLINGS + 1)]
    assert waits == [*doubled, doubled[-1], doubled[-1]]
    patience.start_step()
    patience.planned(0, now)
    assert patience.until - now == FORGET_S
