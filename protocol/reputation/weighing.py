"""What several partners say together: a weighted median, if enough of them agree with it.

One slanderer or one friend changes nothing: a single word counts as none, weights are capped, and
more than half of the weight must lie near the median. Pure arithmetic on integers, so that equal
reports give equal beliefs on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

MIN_REPORTERS: Final = 2
MAX_WEIGHT_S: Final = 600
"""A partner of many hours has no more to say than one of ten minutes."""

NEAR_PERCENT: Final = 35
"""Partners agree whose values lie so near the median, either way."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One partner's measurement: a value and the seconds behind it."""

    value: int
    seconds: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the partners say together; ``value`` is None if they are too few or do not agree."""

    value: int | None
    seconds: int
    """Seconds that at least ``MIN_REPORTERS`` of those who agree have measured."""
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
    """Round to two significant digits: beliefs move in steps, so that noise changes no match."""
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
