"""What ``make test`` runs beside the rest: all simulations, at the lowest priority."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.everything import IDLE_PRIORITY, ON_ALL_CORES, give_way, simulations

REPOSITORY = Path(__file__).parents[3]


def test_every_simulation_is_run_and_those_on_all_cores_come_last() -> None:
    files = [REPOSITORY / name for name in simulations()]
    assert set(files) == {*(REPOSITORY / "tests" / "sim").rglob("test_*.py")}
    assert {file.name for file in files[-len(ON_ALL_CORES) :]} == set(ON_ALL_CORES)


def test_what_runs_beside_the_rest_gives_way_to_it() -> None:
    waits = [sys.executable, "-c", "input()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE, start_new_session=True) as process:
        give_way(process.pid)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == IDLE_PRIORITY
        process.communicate(b"\n")
