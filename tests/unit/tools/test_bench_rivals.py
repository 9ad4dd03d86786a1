"""The pure parts of the comparison with others: keeping, resuming, ratios and printing."""

from __future__ import annotations

import itertools
import json
import math
import sys
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
from tests.bench.rivals.averaging_peer import Moments
from tests.bench.rivals.environment import Missing
from tests.bench.rivals.records import Record, Records, machine, ratio, spread
from tests.bench.rivals.swarm_of_peers import PeerFailed, cpu_s, talking

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


@pytest.mark.parametrize("how", ["other settings", "fresh"])
def test_otherwise_a_part_is_measured_anew_and_the_others_stay(
    records: Records, tmp_path: Path, how: str
) -> None:
    records.begin("codec", SETTINGS, {})
    records.add(record("ours", 0, 2.0, part="codec"))
    records.add(record("ours", 0, 1.0))
    again = Records(tmp_path / "rivals.jsonl")
    settings = {**SETTINGS, "quick": how == "other settings"}
    assert not again.begin("chain", settings, {"hivemind": "1"}, fresh=how == "fresh")
    kept = Records(tmp_path / "rivals.jsonl")
    assert kept.of("chain") == []
    assert [r.values for r in kept.of("codec")] == [[2.0]]


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


def test_the_report_names_what_is_incomplete(records: Records, tmp_path: Path) -> None:
    records.add(record("ours", 0, 1.0))
    text = report.markdown(records)
    assert "## Chain (incomplete)\n" in text
    assert "to the end: chain.\n" in text
    records.end("chain")
    for shown in (records, Records(tmp_path / "rivals.jsonl")):
        text = report.markdown(shown)
        assert "## Chain\n" in text
        assert "incomplete" not in text
        assert "to the end" not in text


def test_a_ratio_is_taken_round_by_round() -> None:
    found = [record("a", 0, 9.0, 10.0, 11.0), record("b", 0, 5.0)]
    found += [record("a", 1, 30.0), record("b", 1, 10.0), record("a", 2, 8.0)]
    of_both = ratio(found, "a", "b")
    assert of_both is not None
    assert (of_both.middle, of_both.least, of_both.most, of_both.rounds) == (2.5, 2.0, 3.0, 2)
    assert str(of_both) == "2.50 (2.00 to 3.00)"
    assert ratio(found, "a", "c") is None


@pytest.mark.parametrize(
    ("samples", "words"), [([], ""), ([1.2345], "1.23"), ([3, 1, 2], "2 (1 to 3)")]
)
def test_spread(samples: list[float], words: str) -> None:
    assert spread(samples) == words


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


def test_the_report_has_every_figure_and_note(records: Records) -> None:
    records.add(record("ours", 0, 4.0, 6.0))
    records.note("chain", "hivemind: no network\nreally")
    text = report.markdown(records)
    assert "| a | ours | 5 (4 to 6) samples/s | 2 |" in text
    assert "- hivemind: no network / really\n" in text
    assert "hivemind 1" in text
    assert "## Codec" not in text
    assert report.averaging_plot(records) == ""


def test_the_plot_has_a_curve_per_contender(records: Records) -> None:
    records.begin(averaging.PART, SETTINGS, {})
    for size, seconds in (("1M", 0.1), ("10M", 1.0)):
        records.add(record("hivemind", 0, seconds, part=averaging.PART, case=size))
    assert "hivemind" in report.averaging_plot(records)


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


def test_a_round_lasts_from_its_first_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", itertools.count(10.0).__next__)
    now, seen = Moments(), []
    for step in (0, 0, 0, 1):
        now.begin(step)
        seen.append((now.plan, now.attempts))
    assert seen == [(10.0, 1), (10.0, 2), (10.0, 3), (11.0, 1)]


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


@pytest.mark.parametrize(("size", "millions"), [("1M", 1), ("10M", 10), ("50M", 50)])
def test_sizes_are_what_they_say(size: str, millions: int) -> None:
    assert averaging.parameters(size) == pytest.approx(millions * 1e6, rel=0.01)


def test_every_case_has_a_name_of_its_own_and_a_line_for_each_peer() -> None:
    assert len({str(case) for case in averaging.CASES}) == len(averaging.CASES)
    assert all(len(case.mbit) in (0, case.peers) for case in averaging.CASES)


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


def test_processes_are_spoken_to_and_end(tmp_path: Path) -> None:
    # some kernels count CPU time in ticks of 10 ms, and miss what takes less
    work = "sum(range(3_000_000))"
    echo = f"import sys\nfor line in sys.stdin: {work}; print(line.upper(), end='', flush=True)"
    with talking([[sys.executable, "-c", echo]] * 2, tmp_path) as talkers:
        for talker in talkers:
            talker.say("hello")
        assert [talker.line(30.0) for talker in talkers] == ["HELLO"] * 2
        assert cpu_s(talkers) > 0
        processes = [talker._process for talker in talkers]
    assert [process.returncode for process in processes] == [0, 0]


def test_failures_are_kept_and_tried_again(records: Records, tmp_path: Path) -> None:
    broken = [sys.executable, "-c", "import sys; sys.exit('no such luck')"]
    calls = []

    def run(folder: Path) -> str:
        calls.append(folder)
        if len(calls) > 1:
            return "done"
        with talking([broken], folder) as [talker]:
            return talker.line(30.0)

    assert attempt(run, records, "chain", "x", lambda words: None) == "done"
    [note] = records.notes("chain")
    assert "no such luck" in note
    assert not any(folder.exists() for folder in calls)


def test_what_is_not_there_is_not_tried_twice(records: Records) -> None:
    def run(folder: Path) -> str:
        raise Missing("no network")

    def fail(folder: Path) -> str:
        raise PeerFailed("nothing for 3 s\nits log")

    for what in ("x", "y"):
        assert attempt(run, records, "chain", what, lambda words: None) is None
    assert records.notes("chain") == ["no network"]
    assert attempt(fail, records, "chain", "y", lambda words: None) is None
    assert len(records.notes("chain")) == 3


def test_every_line_is_json(records: Records, tmp_path: Path) -> None:
    records.add(record("ours", 0, 1.0))
    records.end("chain")
    lines = (tmp_path / "rivals.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == ["machine", "record", "end"]


@pytest.mark.slow
def test_our_side_of_the_chain_runs(tmp_path: Path) -> None:
    """A real seat in the process that the comparison starts, so that it keeps up with the seat."""
    rates = chain.ours(chain.Block(1, 16, 32, 2), 0.5, tmp_path)
    assert len(rates) == len(chain.IN_FLIGHT)
    assert min(rates) > 0
