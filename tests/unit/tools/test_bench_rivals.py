"""The pure parts of the comparison with others: keeping, resuming, ratios and printing."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from client.lab.bench.efficiency import found
from protocol.invite import SwarmFile
from tests.bench.rivals import averaging, chain, pipeline, report
from tests.bench.rivals.attempts import attempt
from tests.bench.rivals.records import Record, Records, machine, ratio

SETTINGS = {"repeats": 2, "quick": False}


def record(who: str, number: int, *values: float, part: str = "chain", case: str = "a") -> Record:
    return Record(part, case, who, number, list(values), "samples/s", 0.5)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    found = Records(tmp_path / "rivals.jsonl")
    assert not found.begin("chain", SETTINGS, {"hivemind": "1"})
    return found


def test_what_was_interrupted_goes_on(records: Records, tmp_path: Path) -> None:
    records.add(record("ours", 0, 1.0))
    again = Records(tmp_path / "rivals.jsonl")
    assert again.begin("chain", SETTINGS, {"hivemind": "1"})
    assert again.has("chain", "a", "ours", 0)
    assert not again.has("chain", "a", "ours", 1)
    assert again.machine("chain")["versions"]["hivemind"] == "1"


@pytest.mark.parametrize("what", ["cpu", "cores", "memory_bytes", "system", "versions"])
def test_what_was_interrupted_on_another_machine_does_not_go_on(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    records.add(record("ours", 0, 1.0))
    other = {**machine({"hivemind": "1"}), what: "another"}
    monkeypatch.setattr("tests.bench.rivals.records.machine", lambda extra: other)
    again = Records(tmp_path / "rivals.jsonl")
    assert not again.begin("chain", SETTINGS, {"hivemind": "1"})
    assert not again.has("chain", "a", "ours", 0)
    again.add(record("ours", 0, 2.0))
    again.end("chain")
    kept = Records(tmp_path / "rivals.jsonl")
    assert [r.values for r in kept.of("chain")] == [[2.0]]
    assert kept.machine("chain")[what] == "another"


def test_what_is_complete_stays_until_it_is_measured_anew(records: Records, tmp_path: Path) -> None:
    path = tmp_path / "rivals.jsonl"
    records.add(record("ours", 0, 1.0))
    records.end("chain")
    again = Records(path)
    assert not again.begin("chain", SETTINGS, {"hivemind": "1"})
    assert again.of("chain") == []
    again.add(record("ours", 0, 2.0))
    interrupted = Records(path)
    assert [r.values for r in interrupted.of("chain")] == [[1.0]]
    assert interrupted.begin("chain", SETTINGS, {"hivemind": "1"})
    assert [r.values for r in interrupted.of("chain")] == [[2.0]]
    interrupted.end("chain")
    assert [r.values for r in Records(path).of("chain")] == [[2.0]]
    assert len(path.read_text().splitlines()) == 3


def test_a_ratio_is_taken_round_by_round() -> None:
    found = [record("a", 0, 9.0, 10.0, 11.0), record("b", 0, 5.0)]
    found += [record("a", 1, 30.0), record("b", 1, 10.0), record("a", 2, 8.0)]
    of_both = ratio(found, "a", "b")
    assert of_both is not None
    assert (of_both.middle, of_both.least, of_both.most, of_both.rounds) == (2.5, 2.0, 3.0, 2)
    assert str(of_both) == "2.50 (2.00 to 3.00)"
    assert ratio(found, "a", "c") is None


def test_seconds_are_compared_the_other_way_round(records: Records) -> None:
    """A rival that takes three times as long is three times as slow."""
    records.begin(averaging.PART, SETTINGS, {})
    for who, seconds in ((averaging.OURS, 1.0), ("hivemind", 3.2)):
        records.add(record(who, 0, seconds, part=averaging.PART, case="1M"))
    case = chain.case_of(chain.BLOCKS[0], 1)
    for who, rate in ((chain.OURS, 300.0), ("hivemind", 200.0)):
        records.add(record(who, 0, rate, case=case))
    found = {line.what: line for line in report.comparisons(records)}
    assert found["averaging 1M: hivemind"].found.middle == pytest.approx(3.2)
    assert found["averaging 1M: hivemind"].verdict == "3: met"
    assert found[f"chain {case}: hivemind"].verdict == "2: missed"


def test_a_round_lasts_from_the_first_plan_to_the_last_result() -> None:
    peers = [
        {
            "plan": 10.0 + p,
            "apply": 14.0 + p,
            "done": 15.0 + p,
            "hash": "x",
            "tasks": {"A": 1.0 + p},
            "attempts": 1 + p % 2,
        }
        for p in range(3)
    ]
    values, more = averaging.of_versions([peers], bare=False)
    assert values == [7.0]
    assert more == {"exchange_s": 6.0, "attempts": 2, "A_s": 2.0, "identical": True}
    differing = [*peers[:2], {**peers[2], "hash": "y"}]
    assert averaging.of_versions([peers, differing], bare=False)[1]["identical"] is False


class Averaging:
    """Speaks as one of hivemind's peers whose rounds end with so large errors."""

    def __init__(self, *errors: float) -> None:
        self._errors = iter(errors)
        self._answer = ""

    def say(self, line: str) -> None:
        said = {"match": "matched", "go": {"done": time.monotonic(), "members": 1}}
        found = said[line] if line in said else {"error": next(self._errors), "digest": "x"}
        self._answer = json.dumps(found)

    def line(self, timeout_s: float) -> str:
        return self._answer


@pytest.mark.parametrize(
    ("compression", "fine", "wrong"),
    [("none", 1e-7, 0.6), ("fp16", 4e-4, 0.6), ("uniform8", 0.08, 0.6), ("none", 1e-7, math.nan)],
)
def test_a_round_that_did_not_average_is_tried_again(
    records: Records, monkeypatch: pytest.MonkeyPatch, compression: str, fine: float, wrong: float
) -> None:
    monkeypatch.setattr(averaging, "cpu_s", lambda peers: 0.0)
    launches = [Averaging(fine, fine, wrong), Averaging(*[fine] * 4)]

    def run(folder: Path) -> averaging.Turn:
        peers: Any = [launches.pop(0)]
        return averaging._turns(peers, averaging.MAX_ERROR[compression])

    turn = attempt(run, records, "chain", "x", lambda words: None)
    assert turn is not None
    assert turn[1]["error"] == fine
    [note] = records.notes("chain")
    assert "x, attempt 1: no average: error " in note


def test_the_first_step_warms_up(tmp_path: Path) -> None:
    manifest = found(tmp_path, pipeline.QUICK.run, pipeline.QUICK.model).manifest
    tokens = manifest.microbatches_per_step * manifest.tokens_per_microbatch
    assert pipeline.rates(manifest, [5.0, 7.0, 8.0]) == [tokens / 2, tokens]


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


@pytest.mark.long
def test_both_rivals_learn_the_same(tmp_path: Path) -> None:
    """One process and PyTorch's pipeline train the same model on the same text."""
    losses = []
    for number, turn in enumerate((pipeline.one_process, pipeline.one_f_one_b)):
        (folder := tmp_path / str(number)).mkdir()
        losses.append(turn(pipeline.QUICK, folder)[1]["losses"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][-1] < losses[0][0]


def test_every_line_is_json(records: Records, tmp_path: Path) -> None:
    records.add(record("ours", 0, 1.0))
    records.end("chain")
    lines = (tmp_path / "rivals.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == ["machine", "record", "end"]


@pytest.mark.long
def test_our_side_of_the_chain_runs(tmp_path: Path) -> None:
    """A real seat in the process that the comparison starts, so that it keeps up with the seat."""
    rates = chain.ours(chain.Block(1, 16, 32, 2), 0.5, tmp_path)
    assert len(rates) == len(chain.IN_FLIGHT)
    assert min(rates) > 0
