"""The owner's file of steps: appended to, whole after a kill, no step twice."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from client.store.step_log import StepLog, StepRecord


def record(step: int, loss: float = 2.5) -> StepRecord:
    return StepRecord(
        swarm="ab" * 6,
        step=step,
        time=1e9 + step,
        loss=loss,
        tokens=100 * step,
        tokens_per_s=12.5 if step else None,
        members=[2, 1],
        grad_norm={"1": 0.5},
    )


def steps(folder: Path) -> list[int]:
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert all(line.endswith(b"\n") for line in lines)
    return [msgspec.json.decode(line)["step"] for line in lines]


def test_a_line_has_what_a_program_needs(tmp_path: Path) -> None:
    StepLog(tmp_path / "made").append([record(3)])
    assert msgspec.json.decode((tmp_path / "made" / "metrics.jsonl").read_bytes()) == {
        "swarm": "abababababab",
        "step": 3,
        "time": 1e9 + 3,
        "loss": 2.5,
        "tokens": 300,
        "tokens_per_s": 12.5,
        "members": [2, 1],
        "grad_norm": {"1": 0.5},
    }


def test_a_restart_goes_on_without_a_step_twice(tmp_path: Path) -> None:
    log = StepLog(tmp_path)
    log.append([record(0), record(1)])
    log.append([record(1), record(2)])
    StepLog(tmp_path).append([record(2), record(3)])
    assert steps(tmp_path) == [0, 1, 2, 3]


def test_a_step_that_is_repeated_after_a_roll_back_follows(tmp_path: Path) -> None:
    log = StepLog(tmp_path)
    log.append([record(4), record(5)])
    log.append([record(4, loss=2.75)])
    assert steps(tmp_path) == [4, 5, 4]


def test_two_swarms_may_share_a_folder(tmp_path: Path) -> None:
    log = StepLog(tmp_path)
    log.append([record(1), msgspec.structs.replace(record(1), swarm="cd" * 6)])
    assert steps(tmp_path) == [1, 1]


@pytest.mark.parametrize("cut", [1, 20, 70])
def test_a_line_that_a_kill_has_torn_is_written_again(tmp_path: Path, cut: int) -> None:
    StepLog(tmp_path).append([record(0), record(1)])
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    StepLog(tmp_path).append([record(1), record(2)])
    assert steps(tmp_path) == [0, 1, 2]


def test_lines_of_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"note": "mine"}\nnonsense \xff\n')
    StepLog(tmp_path).append([record(0)])
    assert path.read_bytes().startswith(b'{"note": "mine"}\nnonsense \xff\n{"swarm"')


def test_after_an_error_the_file_says_what_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    log = StepLog(folder)
    log.append([record(0)])
    for path in folder.iterdir():
        path.rename(tmp_path / path.name)
    folder.rmdir()
    folder.write_text("in the way")
    with pytest.raises(OSError, match="File exists"):
        log.append([record(1)])
    folder.unlink()
    log.append([record(0), record(1)])
    assert steps(folder) == [0, 1], "nothing of it is there any more"
