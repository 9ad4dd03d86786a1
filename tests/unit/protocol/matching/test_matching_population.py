"""Views that evolve: a view does not depend on its history."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import PeerId, Stage
from protocol.matching.member import Member
from protocol.matching.pool import Pool
from protocol.matching.population import BEACONS_KEPT, Population, coarse
from protocol.matching.sharing import StageLevel
from tests.support.matching_examples import WALL_S, costs, member, peer

STAGES = 3
COSTS = costs([1e9, 2e9, 2e9])
BEACON = int(WALL_S // 600)


@st.composite
def members(draw: st.DrawFn, number: int) -> Member:
    held = draw(st.frozensets(st.integers(0, STAGES - 1).map(Stage), max_size=2))
    return Member(
        peer(number),
        WALL_S - draw(st.sampled_from([0.0, 1e4])),
        draw(st.sampled_from([0.0, 1e9, 1.5e9, 3e9, 1e12])),
        draw(st.sampled_from([1.0, 10.0, 1e9])),
        1e9,
        draw(st.sampled_from([0.0, 1e12])),
        held=held,
        home=min(held, default=None),
        second=draw(st.sampled_from([None, *held])),
        fetching=draw(st.sampled_from([frozenset(), held])),
        measured_s=draw(st.sampled_from([0.0, 1000.0])),
        may_decide=draw(st.booleans()),
        certified=draw(st.booleans()),
    )


@st.composite
def histories(draw: st.DrawFn) -> list[dict[PeerId, Member | None]]:
    """Return a series of changes: members change, or leave."""
    numbers = st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True)
    return [
        {peer(n): draw(st.none() | members(n)) for n in draw(numbers)}
        for _ in range(draw(st.integers(1, 5)))
    ]


def facts(view: Population) -> Mapping[str, object]:
    everybody = sorted(view.members)
    stages = [Stage(s) for s in view.stages]
    return {
        "members": dict(view.members),
        "swarm": (view.fair_level, view.able, view.redundancy),
        "rates": {p: view.rates(p) for p in everybody},
        "scores": {(p, s): view.score(p, s, view.fair_level) for p in everybody for s in stages},
        "candidates": [view.candidates(s, BEACON) for s in stages],
        "holders": [view.holders(s) for s in stages],
        "supply": view.supply,
    }


@given(histories())
def test_an_evolved_view_equals_one_made_at_once(
    history: list[dict[PeerId, Member | None]],
) -> None:
    view = Population((), COSTS, 2)
    present: dict[PeerId, Member] = {}
    for changes in history:
        facts(view)  # fills every cache that evolving has to keep right
        present = {**present, **{p: m for p, m in changes.items() if m}}
        present = {p: m for p, m in present.items() if changes.get(p, m) is not None}
        before = facts(view)
        follower = view.evolve(changes)
        assert facts(view) == before
        view = follower
    assert facts(view) == facts(Population(present.values(), COSTS, 2))


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
    shared = view.evolve({peer(1): replace(mover, second=Stage(1))}).supply
    assert shared.copies == (1, 1)
    assert shared.stages[0] == StageLevel(0, rate, rate)
    assert view.evolve({peer(1): replace(mover, may_decide=False)}).supply.copies == (0, 0)


def test_who_may_not_decide_is_no_candidate_and_still_holds_its_stage() -> None:
    held = frozenset({Stage(0)})
    everybody = [Member(peer(n), 0.0, 1e9, 1e9, 1e9, 1e12, held) for n in range(4)]
    view = Population(everybody, COSTS, 2)
    first, *others = view.candidates(Stage(0), BEACON)
    after = view.evolve({first: replace(view.members[first], may_decide=False)})
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
    alone = Population(old, COSTS, 2)
    assert alone.evolve({member.peer: member for member in named}).candidates(
        Stage(0), BEACON
    ) == view.candidates(Stage(0), BEACON)


def test_a_successor_adopts_nobody_that_only_says_it_serves_the_stage() -> None:
    """A crowd would make newcomers avoid the stage."""
    held = frozenset({Stage(0)})
    everybody = [
        Member(peer(n), 0.0, 1e9, 1e9, 1e9, 1e12, held, may_decide=n < 2) for n in range(9)
    ]
    pool = Pool(Stage(0))
    pool.adopt(Population(everybody, COSTS, 2))
    assert set(pool.places) == {peer(0), peer(1)}


def test_lists_of_candidates_do_not_pile_up_over_the_beacons() -> None:
    members = [Member(peer(n), WALL_S - 1e4, 1e9, 10.0, 1e9, 1e12) for n in range(8)]
    view = Population(members, COSTS, 2)
    for beacon in range(BEACON, BEACON + 100):
        view.candidates(Stage(0), beacon)
        view = view.evolve({peer(7): replace(members[7], joined_at=beacon)})
    assert len(view._candidates) <= BEACONS_KEPT


@pytest.mark.parametrize(("memory", "fits"), [(2e9, True), (2e9 - 1, False)])
def test_memory_for_two_stages_is_that_of_both_together(memory: float, fits: bool) -> None:
    view = Population([member(1, memory_bytes=memory)], costs([1e9, 1e9]), 2)
    assert {stage.memory_bytes for stage in view.costs} == {1e9}
    assert view.fits_both(peer(1), Stage(0), Stage(1)) is fits
