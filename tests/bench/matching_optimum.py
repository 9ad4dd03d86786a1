"""How good a match is: its lowest stage against that of the best assignment of homes.

Pure functions of measured rates (microbatches per second by volunteer and stage).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protocol.matching.sharing import StageLevel, lowest_level

MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class Seats:
    """One volunteer's stages: its home, and the neighbouring stage that it also holds."""

    home: int
    second: int | None = None


def best_homes(rates: Sequence[Sequence[float]]) -> tuple[float, tuple[int, ...]]:
    """Search every assignment of one stage to each volunteer; S^n of them.

    Args:
        rates: of volunteer i at stage s.

    Returns:
        The highest possible summed rate of the lowest stage, and the homes that have it.
    """
    stages = len(rates[0]) if rates else 0
    homes = [0] * len(rates)
    levels = [0.0] * stages
    best = (-1.0, tuple(homes))

    def place(index: int) -> None:
        nonlocal best
        if index == len(rates):
            best = max(best, (min(levels), tuple(homes)))
            return
        for stage, rate in enumerate(rates[index]):
            homes[index] = stage
            before = levels[stage]
            levels[stage] += rate
            place(index + 1)
            levels[stage] = before

    place(0)
    return best


def homes_level(rates: Mapping[str, Sequence[float]], seats: Mapping[str, Seats]) -> float:
    """Return the lowest stage's summed rate if everybody served its home alone."""
    stages = len(next(iter(rates.values())))
    levels = [0.0] * stages
    for name, place in seats.items():
        levels[place.home] += rates[name][place.home]
    return min(levels)


def shared_level(rates: Mapping[str, Sequence[float]], seats: Mapping[str, Seats]) -> float:
    """Return the level that every stage reaches when second seats split their time at best."""
    stages = len(next(iter(rates.values())))
    alone, here, beyond = [0.0] * stages, [0.0] * stages, [0.0] * stages
    for name, place in seats.items():
        if place.second is None:
            alone[place.home] += rates[name][place.home]
        else:
            lower = min(place.home, place.second)
            here[lower] += rates[name][lower]
            beyond[lower] += rates[name][lower + 1]
    columns = zip(alone, here, beyond, strict=True)
    return lowest_level([StageLevel(*(int(MICRO * x) for x in row)) for row in columns]) / MICRO
