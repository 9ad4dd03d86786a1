"""No test module imports another one, and of many cases a few are usual."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path

from tests.support.cases import pairwise, usual

TESTS = Path(__file__).parents[2]
MODULES = sorted(TESTS.rglob("test_*.py"))


def test_none_imports_another() -> None:
    names = {path.stem for path in MODULES}
    imported = {path.stem: {name.split(".")[-1] for name in _imported(path)} for path in MODULES}
    assert not {stem: found for stem in imported if (found := imported[stem] & names)}


def test_every_name_is_given_once() -> None:
    """Otherwise pytest takes one file for the other."""
    assert len({path.name for path in MODULES}) == len(MODULES)


def _imported(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


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
