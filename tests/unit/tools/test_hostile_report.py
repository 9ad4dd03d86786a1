"""The table of attacks: which bounds a result misses, and what is kept of it."""

from __future__ import annotations

import msgspec
import pytest

from tests.hostile.attack import MIB, Attack, Distorter
from tests.hostile.scene import Result

ATTACK = Attack(name="x", issue="B0", what="Nothing.", member=Distorter)
HELD = Result(
    attack="x",
    issue="B0",
    rate_before=2.0,
    rate_at_first=0.1,
    rate_during=1.7,
    rate_after=2.0,
    memory_before=100 * MIB,
    memory_during=110 * MIB,
    memory_after=105 * MIB,
    files_before=25,
    files_after=26,
    honest=3,
    alive=3,
    steps_lost=0,
    blamed={"liar": 3},
)


def test_a_result_within_all_bounds_misses_none() -> None:
    assert HELD.misses(ATTACK) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alive": 2}, "1 honest volunteers ended"),
        ({"steps_lost": 7}, "fell back by 7 steps"),
        ({"rate_during": 1.5}, "rate 0.75 of before"),
        ({"memory_during": 165 * MIB}, "memory grew by 65 MiB"),
        ({"memory_after": 165 * MIB}, "memory grew by 65 MiB"),
        ({"files_after": 42}, "file descriptors stayed open"),
        ({"blamed": {"liar": 1, "v2": 1}}, "honest ones were blamed: v2"),
    ],
)
def test_each_bound_is_told_when_it_is_missed(change: dict[str, object], words: str) -> None:
    result = Result(**{**msgspec.to_builtins(HELD), **change})
    assert [told for told in result.misses(ATTACK) if words in told]
