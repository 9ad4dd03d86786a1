"""Every benchmark that needs no card and no root runs in small."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.bench import learning
from tests.bench.rivals.pipeline import OURS, REFERENCE, TORCH, Turn
from tests.support.cli_process import REPOSITORY

pytestmark = pytest.mark.long


def measured(name: str, *flags: str) -> str:
    """Return what a benchmark prints."""
    command = [sys.executable, "-m", f"tests.bench.{name}", *flags]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_rivals_train_and_two_of_them_learn_the_same(folder: Path) -> None:
    measured("rivals", "--quick", "--repeats", "1", "--out", str(folder))
    lines = (folder / "rivals.jsonl").read_text().splitlines()
    turns = {turn.who: turn for turn in (msgspec.json.decode(line, type=Turn) for line in lines)}
    assert turns.keys() == {REFERENCE, OURS, TORCH}
    assert all(min(turn.tokens_per_s) > 0 for turn in turns.values())
    losses = turns[REFERENCE].losses
    assert turns[TORCH].losses == pytest.approx(losses, rel=1e-5)
    assert losses[-1] < losses[0]


def test_boundaries_are_trained_through() -> None:
    small = ("--steps", "20", "--seeds", "1", "--shape", "2x64", "--only", "S8,d/4", "--json")
    wide, narrow = json.loads(measured("boundaries", *small))
    assert narrow["bytes_per_token"] < wide["bytes_per_token"]


def test_local_rounds_learn_beside_exact_steps(folder: Path) -> None:
    measured("learning", "--steps", "128", "--replicas", "2", "--out", str(folder))
    results = learning.read(folder / "learning.jsonl")
    assert [result.run.method for result in results] == ["exact", "local"]
    assert results[0].run.name in (folder / "learning.md").read_text()
