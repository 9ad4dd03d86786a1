"""Sorted columns of a changing population: medians and quantiles at the cost of one insertion."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

Value = TypeVar("Value", float, tuple[int, int])

STEPS_PER_OCTAVE = 16


class Column(Generic[Value]):
    """A multiset of values in order; ``replaced`` returns the next one and leaves this as it is."""

    __slots__ = ("_sorted",)

    def __init__(self, values: Iterable[Value]) -> None:
        self._sorted: list[Value] = sorted(values)

    def replaced(self, gone: Sequence[Value], come: Sequence[Value]) -> Column[Value]:
        """Return the column without ``gone``, all of which it has, and with ``come``."""
        column: Column[Value] = Column(())
        column._sorted = values = self._sorted.copy()
        for value in gone:
            del values[bisect_left(values, value)]
        for value in come:
            insort(values, value)
        return column

    def lower_median(self) -> Value | None:
        """Return the middle value, the lower of two; None if there is none."""
        return self._sorted[(len(self._sorted) - 1) // 2] if self._sorted else None

    def nth_largest(self, count: int) -> Value:
        """Return the ``count``-th largest value (the smallest if there are fewer)."""
        return self._sorted[max(0, len(self._sorted) - count)]


def coarse(value: float | None) -> float:
    """Round down by at most a sixteenth of the power of two below, so that most changes of a
    population leave its median as it is."""
    if value is None or not 0 < value < math.inf:
        return value if value == math.inf else 0.0
    mantissa, exponent = math.frexp(value)
    steps = 2 * STEPS_PER_OCTAVE
    return float(math.ldexp(math.floor(mantissa * steps) / steps, exponent))
