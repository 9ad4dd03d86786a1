"""Experiment trackers are fed beside training, in a process of their own, offline."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from client.store.step_log import HeldOutRecord, LogRecord, SampleRecord, StepRecord
from client.train.reporting import tracker
from client.train.reporting.tracker import Target, Tracker, is_installed, target

PATIENCE_S = 120.0

RECORDS: list[LogRecord] = [
    StepRecord(
        swarm="ab" * 6,
        step=4,
        time=1e9,
        loss=2.5,
        tokens=400,
        tokens_per_s=12.5,
        members=[2, 1],
        grad_norm={"1": 0.5},
    ),
    HeldOutRecord(
        swarm="ab" * 6,
        step=5,
        time=1e9,
        held_out_loss=2.75,
        bits_per_byte=3.967,
        held_out_tokens=64,
        vouchers=1,
        claims=1,
    ),
    SampleRecord(swarm="ab" * 6, step=5, time=1e9, prompt="def f(", sample="x):"),
]


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def finished(fed: Tracker) -> None:
    """Let it finish, as when the node ends."""
    process = fed.close()
    assert process is not None
    assert process.wait(PATIENCE_S) == 0


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the tracker's place, that writes down what it is told; its text may change."""
    module = tmp_path / "stand_in.py"
    module.write_text(
        "import sys\n"
        "out = open(sys.argv[4] + '/told', 'ab', buffering=0)\n"
        "for line in sys.stdin.buffer:\n    out.write(line)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(tracker, "PROGRAM", "stand_in")
    return module


def test_each_record_is_a_line_with_its_numbers(tmp_path: Path, program: Path) -> None:
    fed = Tracker(Target("wandb", "p", "run", tmp_path / "kept"))
    fed.append(RECORDS[:1])
    fed.append(RECORDS[1:])
    finished(fed)
    told = [json.loads(line) for line in (tmp_path / "kept" / "told").read_text().splitlines()]
    assert told == [
        {
            "step": 4,
            "metrics": {
                "loss": 2.5,
                "tokens_per_s": 12.5,
                "members/stage 0": 2.0,
                "members/stage 1": 1.0,
                "grad_norm/stage 1": 0.5,
            },
        },
        {"step": 5, "metrics": {"held_out/loss": 2.75, "held_out/bits_per_byte": 3.967}},
        {"step": 5, "metrics": {"sample/def f(": "def f(x):"}},
    ]


def test_what_a_tracker_says_at_its_end_is_told_and_it_is_started_again(
    tmp_path: Path, program: Path
) -> None:
    works = program.read_text()
    program.write_text("raise SystemExit('you are not logged in')")
    fed = Tracker(Target("wandb", "p", "run", tmp_path / "kept"))

    said = set[str | None]()

    def refused() -> bool:
        try:
            fed.append(RECORDS[:1])
        except OSError as error:
            said.add(error.strerror)
            return True
        return False

    until(refused)
    assert said == {"its process has ended: you are not logged in"}
    program.write_text(works)
    until(lambda: not refused())
    finished(fed)
    assert (tmp_path / "kept" / "told").exists()


def test_a_target_is_a_tracker_and_perhaps_a_project(tmp_path: Path) -> None:
    assert target("trackio:mine", "run", tmp_path).project == "mine"
    assert target("wandb", "run", tmp_path).project == "volunteer"


def test_the_node_never_imports_a_tracker() -> None:
    assert not {"wandb", "trackio"} & set(sys.modules)


@pytest.mark.skipif(not is_installed("wandb"), reason="wandb is not installed")
def test_wandb_records_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    fed = Tracker(Target("wandb", "mine", "abc-def", tmp_path / "kept"))
    fed.append(RECORDS)
    finished(fed)
    (written,) = (tmp_path / "kept" / "wandb").glob("offline-run-*-abc-def/run-abc-def.wandb")
    content = written.read_bytes()
    for name in (b"held_out/loss", b"tokens_per_s", b"sample/def f("):
        assert name in content


@pytest.mark.skipif(not is_installed("trackio"), reason="trackio is not installed")
def test_trackio_records_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    fed = Tracker(Target("trackio", "mine", "abc-def", tmp_path / "kept"))
    fed.append(RECORDS)
    finished(fed)
    with closing(sqlite3.connect(tmp_path / "trackio" / "mine.db")) as database:
        rows = database.execute("select step, metrics from metrics order by id").fetchall()
    told = [(step, json.loads(metrics)) for step, metrics in rows]
    assert (4, 2.5) in [(step, metrics.get("loss")) for step, metrics in told]
    assert (5, 2.75) in [(step, metrics.get("held_out/loss")) for step, metrics in told]
