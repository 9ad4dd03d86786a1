"""The frequency of audits, their verdicts, and the members they expel."""

import math

import pytest

from protocol.audit.draw import LOOKED_AT, PROVEN, UNPROVEN, drawn, rate, segment_drawn
from protocol.audit.record import (
    CLEARED,
    STRIKES,
    TOLERANCE_MIXED,
    WINDOW,
    Grade,
    Record,
    grade,
)
from protocol.audit.terms import MAX_RECORDS, AuditTerms
from protocol.ids import PeerId

A, B, C = map(PeerId, "abc")
SECRET = b"s" * 32


def record(*grades):
    made = Record()
    for result in grades:
        made.note(result)
    return made


def closed(step):
    return step.to_bytes(32, "big")


@pytest.mark.parametrize(
    ("agreed", "expected"),
    [(0, 0.12), (UNPROVEN - 1, 0.12), (UNPROVEN, 0.03), (PROVEN - 1, 0.03), (PROVEN, 0.015)],
)
def test_audited_work_makes_audits_rarer(agreed, expected):
    assert rate(0.03, record(*[Grade.AGREES] * agreed)) == pytest.approx(expected)


@pytest.mark.parametrize("result", [grade for grade in Grade if grade is not Grade.AGREES])
def test_who_was_found_wanting_is_looked_at_again_for_sure(result):
    found = record(*[Grade.AGREES] * PROVEN, result)
    assert rate(0.03, found) == LOOKED_AT
    found.note(Grade.AGREES)
    assert rate(0.03, found) == pytest.approx(0.12)  # as if new


def test_who_is_charged_by_another_is_looked_at_until_it_was_often_found_in_agreement():
    suspect = record(*[Grade.AGREES] * PROVEN)
    suspect.suspect(A)
    for _ in range(CLEARED):
        assert rate(0.03, suspect) == LOOKED_AT
        assert suspect.charge() is None, "another member's word is no strike"
        suspect.note(Grade.AGREES)
    assert rate(0.03, suspect) == pytest.approx(0.015)


def test_a_sum_that_agrees_does_not_clear_who_is_charged_for_its_work():
    suspect = Record()
    suspect.suspect(A)
    for _ in range(2 * CLEARED):
        suspect.note(Grade.AGREES, contributed=False)
    assert rate(0.03, suspect) == LOOKED_AT


def test_sums_alone_make_nobody_proven():
    """Else one that contributes nothing would have a share of the work like any other."""
    idle = Record()
    for _ in range(PROVEN):
        idle.note(Grade.AGREES, contributed=False)
    assert idle.agreed == 0
    idle.note(Grade.AGREES)
    idle.note(Grade.AGREES, contributed=False)
    assert idle.agreed == 1
    idle.note(Grade.SUMS, contributed=False)
    assert idle.agreed == 0


def test_without_a_budget_nobody_is_audited():
    doubted = record(Grade.DOUBTFUL)
    assert all(
        drawn(SECRET, closed(n), 0, n, {A: Record(), B: doubted}, 0.0) is None for n in range(2000)
    )


def test_everybody_is_drawn_as_often_as_the_budget_says():
    """By all auditors together, whatever their number."""
    proven = {peer: record(*[Grade.AGREES] * UNPROVEN) for peer in (A, B)}
    steps, times = 20_000, {A: 0, B: 0}
    for step in range(steps):
        if peer := drawn(SECRET, closed(step), 1, step, proven, 0.1):
            times[peer] += 1
    for count in times.values():  # two others share the rate; one audit at a time
        assert count / steps == pytest.approx(0.05, rel=0.15)


def test_of_two_that_are_drawn_at_once_neither_is_preferred():
    """One is drawn by two fifths of the numbers and the other by four: eight of 25 draw both."""
    others = {A: record(*[Grade.AGREES] * PROVEN), B: record(*[Grade.AGREES] * UNPROVEN)}
    found = [drawn(SECRET, closed(n), 1, n, others, 1.6) for n in range(4000)]
    assert found.count(A) / len(found) == pytest.approx(0.4 - 0.32 / 2, abs=0.03)
    assert found.count(B) / len(found) == pytest.approx(0.8 - 0.32 / 2, abs=0.03)


def test_nobody_foresees_a_draw_without_the_secret():
    others = {A: Record()}
    draws = [
        [drawn(secret, closed(n), 0, n, others, 0.1) for n in range(300)]
        for secret in (SECRET, b"t" * 32)
    ]
    assert draws[0] != draws[1]
    assert draws[0] == [drawn(SECRET, closed(n), 0, n, others, 0.1) for n in range(300)]
    assert any(draws[0])
    assert not drawn(SECRET, closed(1), 0, 1, {}, 1.0)


@pytest.mark.parametrize(
    ("deviation", "one", "mixed"),
    [
        (0.0, Grade.AGREES, Grade.AGREES),
        (1e-7, Grade.AGREES, Grade.AGREES),
        (4.6e-3, Grade.DOUBTFUL, Grade.AGREES),
        (2.1e-2, Grade.LIES, Grade.DOUBTFUL),
        (2.1e-1, Grade.LIES, Grade.LIES),
        (math.inf, Grade.LIES, Grade.LIES),
        (math.nan, Grade.LIES, Grade.LIES),
    ],
)
def test_deviations_are_graded(deviation, one, mixed):
    assert grade(deviation) is one
    assert grade(deviation, TOLERANCE_MIXED) is mixed
    assert grade(-deviation) is one


def test_a_lie_is_enough_and_anything_else_has_to_come_often():
    assert record(*[Grade.AGREES] * 10).charge() is None
    assert record(Grade.AGREES, Grade.LIES).charge() == "lies"
    assert record(Grade.SUMS, Grade.AGREES).charge() == "sums"
    assert record(*[Grade.DOUBTFUL] * (STRIKES - 1)).charge() is None
    assert record(Grade.DOUBTFUL, Grade.REFUSED, Grade.DOUBTFUL).charge() == "fails"
    spread = [*[Grade.AGREES] * (WINDOW // 2), Grade.DOUBTFUL]
    assert record(*spread * 3).charge() is None  # 2 of the newest 50 at most


def test_what_audits_came_to_is_counted_and_the_newest_fault_is_told():
    found = Record()
    for result in (Grade.AGREES, Grade.REFUSED, None, Grade.LIES, Grade.AGREES):
        found.note(result, f"{result}")
    assert found.results == {Grade.AGREES: 2, Grade.REFUSED: 1, Grade.LIES: 1, None: 1}
    assert found.fault == f"{Grade.LIES}"
    assert record(None).charge() is None
    assert record(None).agreed == 0


def test_members_without_number_are_forgotten_those_not_met_for_long_first():
    terms = AuditTerms()
    for number in range(MAX_RECORDS + 1):
        terms.record(0, PeerId(f"member-{number}"))
        terms.record(0, A).note(Grade.LIES)
    assert len(terms.records) == MAX_RECORDS
    assert terms.record(0, A).results == {Grade.LIES: MAX_RECORDS + 1}
    assert (0, PeerId("member-0")) not in terms.records


@pytest.mark.parametrize("budget", [0.03, 0.05])
def test_who_cheats_with_a_twentieth_of_each_step_is_caught_soon(budget):
    """By the budget alone, for in a sum nothing can hide: 99 % within a known number of steps."""
    bound = math.ceil(math.log(0.01) / math.log(1 - 4 * budget))  # while it is new
    late = 0
    for liar in range(1000):
        secret = liar.to_bytes(32, "big")
        found = Record()
        for step in range(bound):
            if drawn(secret, closed(step), 1, step, {A: found}, budget):
                found.note(grade(0.05 / math.sqrt(0.95)))  # a twentieth of the work is missing
        late += found.charge() is None
    assert late <= 25  # 10 expected


def test_every_segment_that_a_member_owns_is_drawn_and_nobody_foresees_which():
    draws = [
        [segment_drawn(secret, closed(n), 1, n, (1, 4)) for n in range(100)]
        for secret in (SECRET, b"t" * 32)
    ]
    assert set(draws[0]) == {1, 4}
    assert draws[0] != draws[1]
    assert segment_drawn(SECRET, closed(1), 1, 1, ()) is None
