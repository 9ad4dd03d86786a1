"""The table of attacks: which bounds a result misses, and what is kept of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.hostile import report
from tests.hostile.attack import (
    MIB,
    Attack,
    Bounds,
    Distorter,
    all_attacks,
)
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


def test_every_attack_of_the_folder_is_found_and_says_what_it_does() -> None:
    found = all_attacks()
    assert len(found) >= 2
    assert all(name == attack.name and attack.what.endswith(".") for name, attack in found.items())


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


def test_an_attacker_that_got_no_time_has_not_attacked() -> None:
    attack = replace(ATTACK, bounds=Bounds(attacker_cores=0.05))
    starved = Result(**{**msgspec.to_builtins(HELD), "attacker": 0.01})
    assert starved.misses(attack) == ["it had 0.01 cores, too few"]
    assert not Result(**{**msgspec.to_builtins(HELD), "attacker": 0.06}).misses(attack)


def test_of_several_runs_of_one_code_the_middle_one_is_shown(tmp_path: Path) -> None:
    def ran(rate: float, version: str, niceness: int = 19) -> None:
        changed = {"rate_during": rate, "version": version, "niceness": niceness, "back_s": 12.0}
        report.keep(Result(**{**msgspec.to_builtins(HELD), **changed}), tmp_path)

    attack = replace(ATTACK, returns_within_s=60.0)
    for rate, version in ((0.1, "old"), (1.9, "new"), (1.7, "new"), (0.2, "new")):
        ran(rate, version)
    text = report.write({"x": attack}, tmp_path).read_text()
    assert "| 0.85 | 3: 0.10, 0.85, 0.95 |" in text
    assert "the newcomer was not linked in time" in text
    assert "| linked not in 60 s; served after 12 s |" in text
    late = Result(**{**msgspec.to_builtins(HELD), "linked_s": 9.0, "back_s": 0.0})
    assert late.misses(attack) == ["the newcomer had no stage in time"]
    ran(1.0, "new", niceness=0)
    assert "| 0.50 | 1: 0.50 |" in report.write({"x": ATTACK}, tmp_path).read_text()
    apart = {"rate_during": 1.2, "version": "new", "niceness": 0, "own_core": True}
    report.keep(Result(**{**msgspec.to_builtins(HELD), **apart, "attacker": 0.2}), tmp_path)
    text = report.write({"x": ATTACK}, tmp_path).read_text()
    assert "| 0.60 | 1: 0.60 |" in text
    assert "| 0.20 (nice 0) (own core) |" in text
