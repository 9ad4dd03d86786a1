"""The tests notice broken machines: a fault that they do not find is probably not there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from client.lab.simulate.chaos.config import drawn
from client.lab.simulate.chaos.replay import run_once
from tests.sim import chaos_mutants
from tests.sim.chaos_mutants import BROKEN_RULE, MUTANTS, RARE, Mutant, Patch
from tests.support.cases import usual

SEEDS_EACH = 40
REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_broken_machine_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)
    seeds = range(mutant.first_seed, mutant.first_seed + SEEDS_EACH)
    drawings = (drawn(seed, mutant.lies, mutant.audits) for seed in seeds)
    configs = (
        replace(config, delayed=mutant.delayed, hashes_later=mutant.hashes_later)
        for config in drawings
    )
    caught = next((found for config in configs if (found := run_once(config)[1])), "")
    assert caught, f"{SEEDS_EACH} seeds do not notice that it {mutant}"
    assert mutant.breaks in caught.splitlines()[0]


def name(rule: Callable[[Patch], None]) -> str:
    return rule.__name__.replace("_", " ")


@pytest.mark.parametrize("rule", usual(1, RARE), ids=name)
def test_a_rule_that_is_rarely_needed_has_a_unit_test(rule: Callable[[Patch], None]) -> None:
    tested = f"tests/unit/protocol/{RARE[rule]}"
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    whole = subprocess.run([*pytest_, tested], cwd=REPOSITORY, capture_output=True, text=True)
    assert whole.returncode == pytest.ExitCode.OK, whole.stdout
    broken = subprocess.run(
        [*pytest_, "-p", chaos_mutants.__name__, tested],
        cwd=REPOSITORY,
        env=os.environ | {BROKEN_RULE: rule.__name__},
        capture_output=True,
        text=True,
    )
    assert broken.returncode == pytest.ExitCode.TESTS_FAILED, broken.stdout


def test_the_three_classics_are_among_at_least_ten() -> None:
    names = {str(mutant) for mutant in MUTANTS}
    assert len(names) >= 10
    assert {
        "counts a retry twice",
        "closes without a quorum",
        "forgets the return address",
    } <= names
