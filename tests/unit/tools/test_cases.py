"""The cases that ``make test`` runs of many."""

from __future__ import annotations

from itertools import combinations, product

from tests.support.cases import pairwise, usual

AXES = ((1, 2, 3), ("a", "b"), (False, True), (0.5, 1.5, 2.5))


def test_every_two_values_meet_in_few_cases() -> None:
    chosen = [case.values for case in pairwise(*AXES) if not case.marks]
    assert len(chosen) < 12
    for one, other in combinations(range(len(AXES)), 2):
        met = {(case[one], case[other]) for case in chosen}
        assert met == set(product(AXES[one], AXES[other]))


def test_the_rest_of_the_product_is_left_to_the_long_run() -> None:
    cases = pairwise(*AXES)
    assert [case.values for case in cases] == list(product(*AXES))
    assert {mark.name for case in cases for mark in case.marks} == {"long"}


def test_the_first_cases_are_the_usual_ones() -> None:
    cases = usual(2, [10, (20, 21), 30])
    assert [case.values for case in cases] == [(10,), (20, 21), (30,)]
    assert [[mark.name for mark in case.marks] for case in cases] == [[], [], ["long"]]
