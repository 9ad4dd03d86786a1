"""Which cases of many ``make test`` runs; the others are marked ``long``."""

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def usual(count: int, cases: Iterable[Any]) -> list[ParameterSet]:
    """Return cases for ``parametrize``: all but the first ``count`` are left to ``make long``.

    A tuple is a case of several values.
    """
    several = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [_case(case, run=index < count) for index, case in enumerate(several)]


def pairwise(*axes: Sequence[Any]) -> list[ParameterSet]:
    """Return the product of the axes for ``parametrize``, most of it left to ``make long``.

    ``make test`` runs as few cases as hold every two values of different axes together: what goes
    wrong does so for one value or for two that meet, hardly ever for three.
    """
    cases = list(product(*(range(len(axis)) for axis in axes)))
    missing = {pair for case in cases for pair in _pairs(case)}
    chosen = set()
    while missing:
        best = max(cases, key=lambda case: len(missing & _pairs(case)))
        missing -= _pairs(best)
        chosen.add(best)
    return [
        _case(tuple(axis[at] for axis, at in zip(axes, case, strict=True)), run=case in chosen)
        for case in cases
    ]


def _pairs(case: tuple[int, ...]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    """Return every two values of a case, each with its axis."""
    return set(combinations(enumerate(case), 2))


def _case(values: tuple[Any, ...], *, run: bool) -> ParameterSet:
    return pytest.param(*values, marks=() if run else pytest.mark.long)
