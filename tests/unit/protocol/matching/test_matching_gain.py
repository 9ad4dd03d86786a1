"""The one rule of changes: coverage, then redundancy, then the level of the stages concerned."""

from dataclasses import replace

import pytest

from protocol.ids import Stage
from protocol.matching import gain
from protocol.matching.gain import Change, changes, paying
from protocol.matching.population import Population
from protocol.matching.sharing import StageLevel
from protocol.matching.supply import Standing, Supply
from tests.support.matching_examples import costs, member, peer, population

MICRO = 1_000_000
ME = peer(1)


def supply(*stages: tuple[int, int, int]) -> Supply:
    """Return what serves stages of (level, replicas at home, second replicas) and r = 2."""
    copies = tuple(homes + seconds for _, homes, seconds in stages)
    return Supply(copies, tuple(StageLevel(level * MICRO) for level, _, _ in stages), 2)


def view(*stages: tuple[int, int, int]) -> Population:
    found = Population([member(1)], costs([1e9] * len(stages)), 2)
    found.supply = supply(*stages)
    return found


def change(home: int, second: int | None, to: int, kept: int | None = None) -> Change:
    pairs = ((home, second), (to, kept))
    before, after = (tuple(Stage(s) for s in pair if s is not None) for pair in pairs)
    return Change(ME, before, after)


@pytest.mark.parametrize(("seconds", "allowed"), [(1, False), (2, True)])
def test_the_second_stage_keeps_its_replicas_too(seconds: int, allowed: bool) -> None:
    """From stage 0 with a second seat at 1 to stage 3: stage 1 loses a replica as well."""
    found = view((9, 9, 0), (9, 1, seconds), (9, 9, 0), (1, 2, 0))
    move = change(0, 1, 3)
    assert move.gives_up == {0, 1}
    assert (move.objection(found) is None) == allowed


def test_a_second_stage_beside_the_new_home_is_kept() -> None:
    found = view((9, 9, 0), (9, 1, 1), (1, 2, 0))
    move = change(0, 1, 2, 1)
    assert move.gives_up == {0}
    assert move.objection(found) is None


@pytest.mark.parametrize(
    ("here", "there", "allowed"), [(2, 0, True), (2, 1, False), (2, 2, False), (3, 1, True)]
)
def test_coverage_comes_before_redundancy_before_throughput(
    here: int, there: int, allowed: bool
) -> None:
    """The same move, from a stage with two and three replicas to one with nobody, one and two."""
    found = view((2, here, 0), (there, there, 0))
    assert (change(0, None, 1).objection(found) is None) == allowed


def test_a_level_has_to_rise_by_more_than_a_twentieth() -> None:
    low = Standing(2, 100)
    assert not Standing(2, 105).exceeds(low, 105)
    assert Standing(2, 106).exceeds(low, 105)
    assert Standing(2, 101).exceeds(low)
    assert Standing(2, 1).exceeds(Standing(1, 100), 105)


def test_who_holds_two_stages_may_come_with_either_seat() -> None:
    me = replace(member(1, held=[1, 0]), home=Stage(1), second=Stage(0))
    both = Population([me], costs([1e9] * 3), 2)
    second, home = changes(both, ME, Stage(2))
    assert second.after == (1, 2)
    assert home.after == (2,)


def test_a_change_leads_from_a_home_to_another_stage() -> None:
    found = population([member(1, held=[0]), member(2)])
    (move,) = changes(found, ME, Stage(1))
    assert (move.before, move.to, move.gives_up) == ((0,), 1, {0})
    assert not list(changes(found, ME, Stage(0))), "it is there"
    assert not list(changes(found, peer(2), Stage(1))), "it has no home"
    assert not list(changes(found, peer(3), Stage(1))), "nobody knows it"


@pytest.mark.parametrize("closely", [1, gain.CLOSELY])
def test_of_several_the_one_comes_by_whom_the_lowest_stage_gains_most(
    monkeypatch: pytest.MonkeyPatch, closely: int
) -> None:
    """Also if the cheap estimate alone chooses."""
    monkeypatch.setattr(gain, "CLOSELY", closely)
    speeds = {1: 1e9, 2: 3e9, 3: 9e9}
    claims = [member(n, flops, held=[0]) for n, flops in speeds.items()]
    members = [replace(claim, measured_s=1000.0) for claim in claims]
    found = population([*members, member(4, held=[1]), member(5, held=[1])])
    found.supply = supply((13, 3, 0), (2, 2, 0))
    best, *_ = paying(found, Stage(1))
    assert best.peer == peer(2), "the fastest would leave too little behind"
