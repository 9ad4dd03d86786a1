"""Max-weight turns: no idle processor, shares that follow the work, no starvation."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.seat.sharing import MAX_PASSED_OVER, TASKS_PER_TURN, Claim, Turns

STAGES = (3, 4, 5)
claims = st.builds(
    Claim,
    stage=st.sampled_from(STAGES),
    rate=st.floats(0, 1e6),
    backlog=st.integers(0, 50),
    in_round=st.booleans(),
)
demands = st.lists(claims, max_size=3, unique_by=lambda claim: claim.stage)


@given(demands)
def test_the_processor_never_idles_while_work_waits(wanted: list[Claim]) -> None:
    stage = Turns().next(wanted)
    waiting = {claim.stage for claim in wanted if claim.backlog}
    assert stage in waiting if waiting else stage is None


@given(st.lists(st.tuples(demands, st.booleans()), max_size=60))
def test_one_stage_at_a_time_and_few_of_its_tasks(events: list[tuple[list[Claim], bool]]) -> None:
    turns, running = Turns(), Counter[int]()
    for wanted, ends in events:
        if ends and running:
            stage = next(iter(running))
            turns.ended(stage)
            running = +(running - Counter([stage]))
        if (stage := turns.next(wanted)) is not None:
            running[stage] += 1
        elif not running:
            assert not any(claim.backlog for claim in wanted)
        assert len(running) <= 1
        assert all(tasks <= TASKS_PER_TURN for tasks in running.values())


@settings(max_examples=50)
@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=3),
    st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3),
)
def test_shares_follow_the_work_that_comes(arrivals: list[int], rates: list[float]) -> None:
    """Per round so many tasks come as can be done: every stage gets just the share it needs."""
    turns, rounds = Turns(), 120
    backlog, served = dict.fromkeys(range(len(arrivals)), 0), Counter[int]()
    for _ in range(rounds):
        for stage, tasks in enumerate(arrivals):
            backlog[stage] += tasks
        for _ in range(sum(arrivals)):
            stage = turns.next([Claim(s, rates[s], n) for s, n in backlog.items()])
            turns.ended(stage)
            backlog[stage] -= 1
            served[stage] += 1
    for stage, tasks in enumerate(arrivals):
        assert served[stage] == pytest.approx(tasks * rounds, rel=0.2)


def test_the_larger_weight_goes_first() -> None:
    assert Turns().next([Claim(0, 2.0, 10), Claim(1, 4.0, 6)]) == 1
    assert Turns().next([Claim(0, 2.0, 10), Claim(1, 4.0, 4)]) == 0


def test_a_stage_without_a_measured_rate_counts_as_the_fastest() -> None:
    assert Turns().next([Claim(0, 2.0, 3), Claim(1, 0.0, 4)]) == 1
    assert Turns().next([Claim(0, 0.0, 3), Claim(1, 0.0, 2)]) == 0


def test_a_round_goes_before_microbatches() -> None:
    assert Turns().next([Claim(0, 9.0, 40), Claim(1, 0.1, 1, in_round=True)]) == 1


@given(st.floats(0, 1e9), st.integers(1, 1000), st.booleans())
def test_nobody_waits_for_ever(rate: float, backlog: int, in_round: bool) -> None:
    turns = Turns()
    order = []
    while 1 not in order:
        stage = turns.next([Claim(0, rate, backlog, in_round), Claim(1, 1e-9, 1)])
        turns.ended(stage)
        order.append(stage)
    assert len(order) <= MAX_PASSED_OVER + 1


def test_another_stage_waits_until_what_runs_has_ended() -> None:
    turns = Turns()
    turns.started(0)
    turns.started(0)
    other = [Claim(1, 1.0, 1)]
    assert turns.next(other) is None
    turns.ended(0)
    assert turns.next(other) is None
    turns.ended(0)
    assert turns.next(other) == 1


def test_a_stage_that_is_given_up_keeps_nobody_waiting() -> None:
    turns = Turns()
    turns.started(0)
    turns.forget(0)
    turns.ended(0)  # its worker's last word
    assert turns.next([Claim(1, 1.0, 1)]) == 1
