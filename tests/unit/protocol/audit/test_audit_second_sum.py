"""A check of one sum from the draw to its end, and whatever an owner may show instead."""

import pytest

from protocol.audit.audit import ASK_AGAIN_S, PATIENCE_S, Ask, Judged, Stage
from protocol.audit.draw import sum_drawn
from protocol.audit.record import Grade, Record
from protocol.audit.second_sum import SecondSum, SumSubject, root_of_sum
from protocol.ids import PeerId
from protocol.pipeline.effects import PayloadKey, SumAgainTask

ME, OWNER, THIRD = (PeerId(name) for name in ("me", "owner", "third"))
PARTS = ((OWNER, b"o" * 32), (ME, b"m" * 32), (THIRD, b"t" * 32))
SUBJECT = SumSubject(
    member=OWNER,
    stage=1,
    step=3,
    attempt=2,
    segment=1,
    root=root_of_sum(1, b"s" * 32),
    bounds=(0, 10, 30, 40),
    parts=PARTS,
    microbatches=(4, 2, 1),
)


def key(peer: PeerId, segment: int = 1) -> PayloadKey:
    return PayloadKey(3, "segment", segment, 2, peer)


def check() -> SecondSum:
    return SecondSum(SUBJECT, ME, 0.5, 0.0)


def summing() -> SecondSum:
    one = check()
    one.begin()
    one.shown(key(OWNER), b"o" * 32, 1.0)
    one.shown(key(THIRD), b"t" * 32, 1.0)
    return one


def graded(effects: list[object], grade: Grade | None) -> bool:
    (judged,) = effects
    assert isinstance(judged, Judged)
    return judged.grade is grade and judged.member == OWNER and bool(judged.words)


def test_the_owner_is_asked_for_all_parts_but_ours_and_they_are_summed_in_order() -> None:
    one = check()
    asked = [Ask(OWNER, key(OWNER), b"o" * 32), Ask(OWNER, key(THIRD), b"t" * 32)]
    assert one.begin() == asked
    assert one.shown(key(THIRD), b"t" * 32, 1.0) == []
    [task] = one.shown(key(OWNER), b"o" * 32, 1.0)
    parts = (key(OWNER), key(ME), key(THIRD))
    sent = PayloadKey(3, "reduced", 1, 2, OWNER)
    assert task == SumAgainTask(3, 1, parts, 20, (4, 2, 1), 0.5, sent)


@pytest.mark.parametrize(
    ("deviation", "grade"),
    [
        (0.0, Grade.AGREES),
        (1e-7, Grade.AGREES),
        (5e-3, Grade.DOUBTFUL),
        (11.0, Grade.LIES),
        (float("inf"), Grade.LIES),
        (float("nan"), Grade.LIES),
    ],
)
def test_a_sum_is_judged_by_its_distance_from_ours(deviation: float, grade: Grade) -> None:
    assert graded(summing().compared(deviation), grade)


def test_a_part_that_nobody_contributed_is_no_part() -> None:
    one = check()
    one.begin()
    assert graded(one.shown(key(OWNER), b"x" * 32, 1.0), Grade.REFUSED)
    assert one.shown(key(THIRD), b"t" * 32, 1.0) == []


def test_nothing_but_what_was_asked_for_is_taken() -> None:
    one = check()
    one.begin()
    for foreign in (key(ME), key(PeerId("stranger")), key(OWNER, 2)):
        assert not one.waits_for(foreign)
        assert one.shown(foreign, b"o" * 32, 1.0) == []
    assert one.state is Stage.COLLECTING


def test_an_owner_that_is_silent_is_asked_again_and_then_given_up() -> None:
    one = check()
    one.begin()
    assert one.tick(ASK_AGAIN_S - 0.1) == []
    assert len(one.tick(ASK_AGAIN_S)) == 2
    assert graded(one.tick(PATIENCE_S), Grade.REFUSED)
    assert one.next_deadline() is None


def test_what_comes_too_early_or_late_changes_nothing() -> None:
    one = check()
    assert one.compared(11.0) == [], "nothing is summed yet"
    done = summing()
    assert done.next_deadline() is None, "the worker takes its time"
    done.compared(0.0)
    for late in (done.compared(11.0), done.refused(), done.void("gone"), done.not_computed("oom")):
        assert late == []


@pytest.mark.parametrize(("error", "grade"), [("codec", Grade.REFUSED), ("oom", None)])
def test_only_what_the_owner_shows_is_its_fault(error: str, grade: Grade | None) -> None:
    assert graded(summing().not_computed(error), grade)


def test_two_segments_with_equal_sums_have_different_names() -> None:
    assert root_of_sum(1, bytes(32)) != root_of_sum(2, bytes(32))


def test_every_segment_of_every_other_owner_is_drawn() -> None:
    owned = {OWNER: (Record(), (1, 4)), THIRD: (Record(), (2, 5))}
    drawn = {sum_drawn(bytes(32), b"d", 1, step, owned, 0.1) for step in range(400)}
    assert drawn == {None, (OWNER, 1), (OWNER, 4), (THIRD, 2), (THIRD, 5)}
    other = [sum_drawn(b"x" * 32, b"d", 1, step, owned, 0.1) for step in range(400)]
    ours = [sum_drawn(bytes(32), b"d", 1, step, owned, 0.1) for step in range(400)]
    assert other != ours, "nobody can foresee another's draw"
    assert 0.25 < sum(one is not None for one in ours) / 400 < 0.5, "new owners: four times"
