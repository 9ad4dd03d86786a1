"""The commit rule as a table; its projection; when an epoch is due; last members; pledges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.ids import Stage
from protocol.matching.design import FULL, Design
from protocol.matching.exchange import load
from protocol.matching.exchange.bodies import EpochId, Round
from protocol.matching.exchange.chair import Condition, Last, due_at, grievance_of
from protocol.matching.exchange.load import Basis, Load
from protocol.matching.exchange.pledges import Pledges
from protocol.matching.exchange.projection import SAMPLES, Projection, project
from protocol.matching.exchange.verdict import StagePlan, judge
from protocol.matching.last_members import MISSED_BEACONS, LastMembers
from tests.support.matching_examples import member, peer, population

MICRO = 1_000_000


def stage(
    before: float, after: float, *, replicas: int = 10, then: int = 10, leaving: int = 0,
    thinnest: int | None = None,
) -> StagePlan:  # fmt: skip
    """Return a stage that goes from one level to another at once."""
    timeline = (Load(int(after * MICRO)),) * SAMPLES
    low = min(replicas, then) if thinnest is None else thinnest
    projection = Projection(timeline, 0, leaving, then, low)
    return StagePlan(Basis(Load(int(before * MICRO)), replicas), projection)


LENIENT = replace(FULL, commit_rule=False)
TABLE = [
    ("nobody moves", [stage(1, 2), stage(2, 2)], FULL, False),
    ("clear gain", [stage(1, 1.5), stage(2, 1.5, leaving=1)], FULL, True),
    ("gain below a per cent", [stage(1, 1.009), stage(2, 1.5, leaving=1)], FULL, False),
    ("gain eaten by moves", [stage(1, 1.03), stage(2, 1.5, leaving=10)], FULL, False),
    ("the same without the rule", [stage(1, 1.03), stage(2, 1.5, leaving=10)], LENIENT, True),
    ("loss without the rule", [stage(1, 1), stage(2, 0.9, leaving=1)], LENIENT, False),
    ("nothing before, nothing after", [stage(0, 0), stage(2, 2, leaving=1)], FULL, False),
    (
        "mends coverage whatever it costs",
        [stage(0, 0.1, replicas=0, then=1), stage(2, 0.1, leaving=9)],
        FULL,
        True,
    ),
    (
        "takes coverage away",
        [stage(1, 2, replicas=2, then=1), stage(2, 2, leaving=1)],
        FULL,
        False,
    ),
    (
        "thin on the way",
        [stage(1, 2, replicas=2, then=2, thinnest=1), stage(2, 2, leaving=1)],
        FULL,
        False,
    ),
    (
        "an empty stage weighs more than two missing replicas",
        [stage(1, 1, replicas=0, then=1), stage(1, 1, replicas=3, then=1, leaving=2)],
        FULL,
        True,
    ),
]


@pytest.mark.parametrize(
    ("stages", "design", "adopted"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_commit_rule(stages: list[StagePlan], design: Design, adopted: bool) -> None:
    verdict = judge(stages, 2, design)
    assert verdict.adopted is adopted, verdict.words


def test_the_verdict_says_its_numbers() -> None:
    words = judge([stage(0.82, 0.97), stage(2, 1.5, leaving=3)], 2, FULL).words
    assert "from 0.82 microbatches/s to 0.97 microbatches/s over 30 min, 3 of 20 move" in words


def test_movers_count_where_they_are_until_they_have_fetched() -> None:
    """12 bytes x 1000 parameters at 20 bytes/s: ten minutes, five of sixteen samples."""
    slow = replace(member(1, held=[0]), downlink_bytes_per_s=20.0, measured_s=1000.0)
    view = population([slow, member(2, held=[0]), member(3, held=[1])])
    rate = view.rate(slow.peer, Stage(0))
    basis = Basis(Load(view.rate(peer(2), Stage(0)) + rate), 2)
    left = project(view, Stage(0), basis, {slow.peer: Stage(1)}, frozenset())
    assert [sample.level for sample in left.timeline] == [
        basis.load.level - (rate if k >= 5 else 0) for k in range(SAMPLES)
    ]
    assert (left.leaving, left.replicas, left.thinnest) == (1, 1, 1)
    there = Basis(Load(view.rate(peer(3), Stage(1))), 1)
    come = project(view, Stage(1), there, {}, frozenset({slow.peer}))
    assert [s.level > there.load.level for s in come.timeline] == [k >= 5 for k in range(SAMPLES)]
    assert (come.arriving, come.replicas, come.thinnest) == (1, 2, 1)


def test_levels_after_dual_homing_lift_the_lonely_stage() -> None:
    both = Load(4 * MICRO, up=4 * MICRO, up_there=4 * MICRO)
    assert load.lowest([both, Load(0)]) == pytest.approx(2 * MICRO, rel=1e-5)
    down = Load(4 * MICRO, down=4 * MICRO, down_there=4 * MICRO)
    assert load.lowest([Load(0), down]) == pytest.approx(2 * MICRO, rel=1e-5)


# --- when an epoch is due -------------------------------------------------------------------

EVEN = Condition((100, 100), (2, 2))
UNEVEN = Condition((100, 70), (2, 2))


def test_even_stages_need_no_epoch() -> None:
    assert grievance_of(EVEN, 2) is None
    assert grievance_of(Condition((100, 85), (2, 2)), 2) is None


def test_uneven_levels_and_missing_replicas_do() -> None:
    uneven = grievance_of(UNEVEN, 2)
    assert uneven
    assert not uneven.urgent
    short = grievance_of(Condition((100, 100), (4, 1)), 2)
    assert short
    assert short.urgent
    assert grievance_of(Condition((100, 100), (2, 1)), 2) is None, "nobody has one to spare"


def test_epochs_keep_their_distance() -> None:
    uneven = grievance_of(UNEVEN, 2)
    urgent = grievance_of(Condition((100, 100), (4, 1)), 2)
    assert uneven
    assert urgent
    before = Last(1000.0, Condition((100, 50), (2, 2)), aborted=True)
    assert due_at(UNEVEN, uneven, 900.0, None) == 905.0
    assert due_at(UNEVEN, uneven, 1001.0, before) == 1060.0
    assert due_at(UNEVEN, urgent, 1001.0, before) == 1006.0
    assert due_at(UNEVEN, uneven, 1001.0, replace(before, condition=UNEVEN)) == 1300.0


# --- last members and pledges ----------------------------------------------------------------


def names(*numbers: int) -> frozenset:
    return frozenset(map(peer, numbers))


def test_only_one_part_of_a_split_keeps_the_majority_for_half_an_hour() -> None:
    here, there = LastMembers(), LastMembers()
    for last_members in (here, there):
        for count in (1, 3, 5):  # members are met one after the other
            last_members.observe(names(*range(count)), 7)
        last_members.observe(names(*range(5)), 8)
    for beacon in (8, 9, 10):
        here.observe(names(0, 1, 2), beacon)
        there.observe(names(3, 4), beacon)
    assert here.has_majority(names(0, 1, 2))
    assert not there.has_majority(names(3, 4))
    there.observe(names(3, 4, 20, 21, 22), 11)
    assert not there.has_majority(names(3, 4, 20, 21, 22)), "newcomers do not count"


def test_members_that_vanished_together_count_no_more_after_half_an_hour() -> None:
    last_members = LastMembers()
    last_members.observe(names(*range(19)), 7)
    for beacon in range(8, 8 + MISSED_BEACONS):
        last_members.observe(names(0, 1, 2), beacon)
        assert not last_members.has_majority(names(0, 1, 2)), beacon
    last_members.observe(names(0, 1, 2), 8 + MISSED_BEACONS)
    assert last_members.has_majority(names(0, 1, 2))
    assert not last_members.has_majority(names(0))


def test_half_is_no_majority_and_who_said_goodbye_is_not_missed() -> None:
    last_members = LastMembers()
    last_members.observe(names(0, 1, 2, 3), 7)
    assert not last_members.has_majority(names(0, 1))
    last_members.excuse(peer(3))
    assert last_members.has_majority(names(0, 1))


def test_nobody_signs_two_things_in_one_matter() -> None:
    pledges, round_ = Pledges(), Round(EpochId(1, 1, 1), 1)
    assert pledges.sign(round_, Stage(0), b"a", decision=False)
    assert pledges.sign(round_, Stage(0), b"a", decision=False)
    assert not pledges.sign(round_, Stage(0), b"b", decision=False)
    assert pledges.sign(round_, Stage(0), b"b", decision=True)
    assert pledges.sign(round_._replace(attempt=2), Stage(0), b"b", decision=False)
