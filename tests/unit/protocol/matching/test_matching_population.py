"""What a view of the members says of stages, stewards and speeds."""

from dataclasses import replace
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import Stage
from protocol.matching.member import Member
from protocol.matching.pool import Pool
from protocol.matching.population import Population, coarse
from protocol.matching.sharing import StageLevel
from tests.support.matching_examples import WALL_S, costs, member, peer

COSTS = costs([1e9, 2e9, 2e9])
BEACON = int(WALL_S // 600)


@given(st.lists(st.floats(0, 1e30), min_size=1))
def test_a_coarse_median_is_hardly_below_the_median(values: list[float]) -> None:
    median = median_low(values)
    found = coarse(median)
    assert found <= median
    assert found >= median * 15 / 16


def test_who_moves_counts_at_both_stages_and_who_shares_its_time_in_a_pool() -> None:
    """Or a stage would go on calling while somebody is under way."""
    both = frozenset({Stage(0), Stage(1)})
    mover = Member(peer(1), 0.0, 1e9, 1e9, 1e9, 1e12, both, home=Stage(0), fetching=both - {0})
    view = Population([mover], costs([1e9, 1e9]), 2)
    rate = view.rate(peer(1), Stage(0))
    assert view.supply.copies == (1, 1)
    assert [stage.alone for stage in view.supply.stages] == [rate, rate]
    shared = view.of([replace(mover, second=Stage(1))]).supply
    assert shared.copies == (1, 1)
    assert shared.stages[0] == StageLevel(0, rate, rate)
    assert view.of([replace(mover, may_decide=False)]).supply.copies == (0, 0)


def test_who_may_not_decide_is_no_candidate_and_still_holds_its_stage() -> None:
    held = frozenset({Stage(0)})
    everybody = [Member(peer(n), 0.0, 1e9, 1e9, 1e9, 1e12, held) for n in range(4)]
    view = Population(everybody, COSTS, 2)
    first, *others = view.candidates(Stage(0), BEACON)
    after = view.of([replace(one, may_decide=one.peer != first) for one in everybody])
    assert first not in after.candidates(Stage(0), BEACON)
    assert after.candidates(Stage(0), BEACON)[:2] == tuple(others)
    assert first in after.holders(Stage(0))


def test_whom_a_waypoint_names_comes_before_any_number_of_others() -> None:
    """Whoever gets in first."""
    old = [Member(peer(n), 0.0, 1e12, 1e9, 1e9, 1e12) for n in range(200)]
    named = [Member(peer(n), WALL_S, 1e9, 1e9, 1e9, 1e12, certified=True) for n in range(200, 202)]
    view = Population([*old, *named], COSTS, 2)
    for stage in map(Stage, view.stages):
        first, second, third = view.candidates(stage, BEACON)
        assert {first, second} == {peer(200), peer(201)}
        assert third in {member.peer for member in old}


def test_a_successor_adopts_nobody_that_only_says_it_serves_the_stage() -> None:
    """A crowd would make newcomers avoid the stage."""
    held = frozenset({Stage(0)})
    everybody = [
        Member(peer(n), 0.0, 1e9, 1e9, 1e9, 1e12, held, may_decide=n < 2) for n in range(9)
    ]
    pool = Pool(Stage(0))
    pool.adopt(Population(everybody, COSTS, 2))
    assert set(pool.places) == {peer(0), peer(1)}


@pytest.mark.parametrize(("memory", "fits"), [(2e9, True), (2e9 - 1, False)])
def test_memory_for_two_stages_is_that_of_both_together(memory: float, fits: bool) -> None:
    view = Population([member(1, memory_bytes=memory)], costs([1e9, 1e9]), 2)
    assert {stage.memory_bytes for stage in view.costs} == {1e9}
    assert view.fits_both(peer(1), Stage(0), Stage(1)) is fits
