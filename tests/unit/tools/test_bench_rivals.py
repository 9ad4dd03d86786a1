"""The comparison with one process and PyTorch's pipeline: the same steps for all, and ratios."""

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from protocol.invite import SwarmFile
from tests.bench.rivals import pipeline, report
from tests.bench.rivals.pipeline import Turn


def test_a_ratio_is_taken_round_by_round() -> None:
    ours = [[9.0, 10.0, 11.0], [30.0], [8.0]]
    turns = [Turn("ours", number, rates) for number, rates in enumerate(ours)]
    turns += [Turn("one process", 0, [5.0]), Turn("one process", 1, [10.0]), Turn("1F1B", 5, [1.0])]
    (found,) = report.ratios(turns)
    assert found == report.Ratio("one process", middle=2.5, least=2.0, most=3.0, rounds=2)
    assert found.verdict == "0.95: met"
    assert "| one process | 2.50 (2.00 to 3.00) x | 0.95: met |" in report.markdown("", turns)


def test_everybody_is_timed_over_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = [9.0, 4.0, 2.0, 1.0]

    def ends(swarm: SwarmFile, folder: Path) -> list[float]:
        return list(itertools.accumulate(taken[: swarm.manifest.steps]))

    def answers(processes: Sequence[None]) -> list[dict[str, Any]]:
        moments = list(itertools.accumulate(taken[: pipeline.STEPS], initial=0.0))
        return [{"moments": moments, "losses": []} for _ in processes]

    monkeypatch.setattr(pipeline, "swarm_moments", ends)
    monkeypatch.setattr(pipeline, "_python", lambda *arguments: nullcontext())
    monkeypatch.setattr(pipeline, "_answers", answers)
    turns = (pipeline.ours, pipeline.one_process, pipeline.one_f_one_b)
    rates = []
    for number, turn in enumerate(turns):
        (folder := tmp_path / str(number)).mkdir()
        rates.append(turn(pipeline.QUICK, folder)[0])
    assert len(rates[0]) == pipeline.STEPS - 1
    assert rates[0] == rates[1] == rates[2]
