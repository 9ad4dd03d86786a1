"""Combines several partners' measurements: a weighted median, if enough of them agree with it.

One slanderer or one accomplice changes nothing: a single report does not count, weights are capped,
and more than half of the weight must lie near the median. Integer arithmetic only, so that equal
reports give equal beliefs on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

MIN_REPORTERS: Final = 2
MAX_WEIGHT_S: Final = 600
"""Cap of a weight: a partner of many hours weighs no more than one of ten minutes."""

NEAR_PERCENT: Final = 35
"""A partner agrees if its value is within this distance of the median, either way."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One partner's measurement: a value and the seconds behind it."""

    value: int
    seconds: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The combined value; None if the partners are too few or disagree."""

    value: int | None
    seconds: int
    """Seconds measured by each of at least ``MIN_REPORTERS`` partners that agree."""
    words: str


def weigh(samples: Iterable[Sample]) -> Verdict:
    """Return the value that most of the weight agrees on."""
    known = sorted((s for s in samples if s.seconds > 0), key=lambda s: (s.value, s.seconds))
    if len(known) < MIN_REPORTERS:
        return Verdict(None, 0, f"measured by {len(known)} of {MIN_REPORTERS} partners needed")
    middle = _weighted_median(known)
    near = [s for s in known if _near(s.value, middle)]
    if 2 * sum(map(_weight, near)) <= sum(map(_weight, known)) or len(near) < MIN_REPORTERS:
        return Verdict(None, 0, f"{len(known)} partners contradict each other")
    seconds = sorted((s.seconds for s in near), reverse=True)[MIN_REPORTERS - 1]
    return Verdict(middle, seconds, f"measured by {len(near)} of {len(known)} partners")


def two_digits(value: int) -> int:
    """Round to two significant digits, so that noise changes no match."""
    scale: int = 10 ** max(0, len(str(value)) - 2)
    return (value + scale // 2) // scale * scale


def _weighted_median(known: Sequence[Sample]) -> int:
    """Return the lowest value below or at which half of the weight lies."""
    total, passed = sum(map(_weight, known)), 0
    for sample in known:
        passed += _weight(sample)
        if 2 * passed >= total:
            return sample.value
    return known[-1].value


def _weight(sample: Sample) -> int:
    return min(sample.seconds, MAX_WEIGHT_S)


def _near(value: int, middle: int) -> bool:
    return 100 * abs(value - middle) <= NEAR_PERCENT * middle
