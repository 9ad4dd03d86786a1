"""The ablation goes on where it was and reports what it has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.ablation import main

TINY = ("--cells", "12/3", "--churn", "0,50", "--seeds", "2", "--hours", "0.3")


def _run(folder: Path, policies: str, *more: str) -> list[str]:
    """Return the lines that are kept after a run."""
    main([*TINY, "--results", str(folder), "--policies", policies, *more])
    return (folder / "ablation.jsonl").read_text().splitlines()


def test_finished_runs_are_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = _run(tmp_path, "random")
    assert len(first) == 4
    capsys.readouterr()
    assert _run(tmp_path, "random") == first
    assert capsys.readouterr().err == ""
    both = _run(tmp_path, "random,greedy-join")
    assert both[:4] == first
    assert len(both) == 8


def test_runs_of_other_code_count_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "ablation.jsonl"
    runs = [json.loads(line) for line in _run(tmp_path, "random")]
    path.write_text("".join(json.dumps(run | {"code": "older"}) + "\n" for run in runs))
    assert len(_run(tmp_path, "random", "--accept-old")) == 4
    assert len(_run(tmp_path, "random")) == 8
