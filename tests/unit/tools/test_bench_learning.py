"""The benchmark of learning: what runs are made, that each is kept, and that liars and the missed
rounds of a replica are felt."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from model_zoo.datasets.build import open_source
from model_zoo.datasets.corpus import Corpus
from model_zoo.specs.model import ModelSpec
from tests.bench import learning, learning_runs
from tests.bench.learning_runs import Result, Run, train

LOCAL = Run("local", "tiny", 8, 0, "muon", 0.01, replicas=4, codec="s8", microbatches=2)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(learning_runs.SHAPES, "tiny", ModelSpec("gpt", 1, 16, 2, 2, 32, 64))
    monkeypatch.setattr(learning_runs, "HELD_OUT", 16)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    path = tmp_path / "text"
    path.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 100)
    return open_source(str(path))


def test_a_finished_run_is_not_made_again(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, runs = tmp_path / "learning.jsonl", [LOCAL, replace(LOCAL, method="exact", replicas=1)]
    made = list(learning.finished(runs[:1], corpus, path))
    monkeypatch.setattr(learning, "train", lambda run, corpus: Result(run, (1.0,), 0.0, "later"))
    assert [*made, *learning.read(path)] == 2 * made
    again = list(learning.finished(runs, corpus, path))
    assert (again[0], again[1].code) == (made[0], "later")
    assert learning.read(path) == again


@pytest.mark.parametrize("change", [{"liar": "x-10"}, {"drop": 0.9}, {"inner_microbatches": 2}])
def test_a_liar_and_missed_rounds_are_felt(corpus: Corpus, change: dict[str, object]) -> None:
    honest, other = train(LOCAL, corpus), train(replace(LOCAL, **change), corpus)
    assert len(honest.curve) == len(other.curve) == 4
    assert honest.held_out < 5.5 < honest.curve[0] + 0.1
    assert other.curve != honest.curve
