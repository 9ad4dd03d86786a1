"""Combines several partners' measurements: their median, if enough of them agree with it.

One slanderer or one accomplice changes nothing: a single report does not count, and more than half
of the partners must lie near the median. For how long each has measured is its own word, and gives
it no more weight than another. Integer arithmetic only, so that equal reports give equal beliefs on
every machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low
from typing import Final

MIN_REPORTERS: Final = 2
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
    """Return the value that most partners agree on."""
    known = [sample for sample in samples if sample.seconds > 0]
    if len(known) < MIN_REPORTERS:
        return Verdict(None, 0, f"measured by {len(known)} of {MIN_REPORTERS} partners needed")
    middle = median_low(sample.value for sample in known)
    near = [s for s in known if 100 * abs(s.value - middle) <= NEAR_PERCENT * middle]
    if 2 * len(near) <= len(known) or len(near) < MIN_REPORTERS:
        return Verdict(None, 0, f"{len(known)} partners contradict each other")
    seconds = sorted((s.seconds for s in near), reverse=True)[MIN_REPORTERS - 1]
    return Verdict(middle, seconds, f"measured by {len(near)} of {len(known)} partners")


def two_digits(value: int) -> int:
    """Round to two significant digits, so that noise changes no match."""
    scale: int = 10 ** max(0, len(str(value)) - 2)
    return (value + scale // 2) // scale * scale
