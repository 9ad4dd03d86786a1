"""The chaos world notices broken machines: what it finds in nobody is not there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from client.lab.simulate.chaos.config import drawn
from client.lab.simulate.chaos.replay import run_once
from tests.sim.chaos_mutants import MUTANTS, Mutant

SEEDS_EACH = 40


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


def test_the_three_classics_are_among_at_least_ten() -> None:
    names = {str(mutant) for mutant in MUTANTS}
    assert len(names) >= 10
    assert {
        "counts a retry twice",
        "closes without a quorum",
        "forgets the return address",
    } <= names
