"""The lanes of ``make test``: what only computes runs beside the rest, at the lowest priority."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.everything import ALL, CHECK, IDLE_PRIORITY, REPOSITORY, SWARMS, Lane, give_way, started


def files(lane: Lane) -> list[Path]:
    """The test files that a lane runs."""
    return [path for name in lane.tests for path in within(name) if not left_out(path, lane)]


def within(name: str) -> list[Path]:
    path = REPOSITORY / name.partition("::")[0]
    return [path] if path.is_file() else sorted(path.rglob("test_*.py"))


def left_out(path: Path, lane: Lane) -> bool:
    return any(path.is_relative_to(REPOSITORY / name) for name in lane.without)


def test_every_test_is_in_one_lane() -> None:
    run = Counter(path for lane in ALL for path in files(lane))
    assert set(run) == {*(REPOSITORY / "tests").rglob("test_*.py")}
    assert set(run.values()) == {1}


def test_the_quick_check_runs_every_unit_test_once_but_whole_swarms() -> None:
    run = Counter(path for lane in CHECK for path in files(lane))
    unit = {*(REPOSITORY / "tests" / "unit").rglob("test_*.py")}
    assert SWARMS
    assert set(run) > unit - {REPOSITORY / name for name in SWARMS}
    assert set(run.values()) == {1}


def test_a_lane_ends_with_the_code_of_its_tests_and_what_they_said(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text("def test_wrong():\n    assert not 'found out'\n")
    with started(Lane("wrong", (str(tmp_path),))) as (process, said):
        assert process.wait(60) == 1
        said.seek(0)
        assert "found out" in said.read()


def test_what_runs_beside_the_rest_gives_way_to_it() -> None:
    waits = [sys.executable, "-c", "input()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE, start_new_session=True) as process:
        give_way(process.pid)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == IDLE_PRIORITY
        process.communicate(b"\n")
