"""The benchmark of a GPU is rehearsed on the processor: its minutes on a card are few."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.gpu.running import REPOSITORY, SHARES_S

pytestmark = pytest.mark.slow


def quick(folder: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.bench.gpu", "quick", "--device", "cpu", "--small"]
    return subprocess.Popen(
        [*command, "--json", str(folder / "rows.jsonl"), *flags],
        cwd=REPOSITORY,
        env={**os.environ, "VOLUNTEER_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_every_part_prints_its_row_and_keeps_it(folder: Path) -> None:
    process = quick(folder)
    printed, _ = process.communicate(timeout=300)
    rows = [json.loads(line) for line in printed.splitlines()]
    assert process.returncode == 0, rows
    assert [row["part"] for row in rows if "ended" in row] == list(SHARES_S)
    assert not [row for row in rows if "failed" in row]
    assert (folder / "rows.jsonl").read_text() == printed
    found = {}
    for row in rows:
        found.setdefault(row["part"], {}).update(row)
    assert found["rates"]["missing"] == {}
    assert "measured" in found["alone-gpt2"]["compiled"]["worker"]["of"]
    assert found["alone-llama"]["worker"] == "blocks run compiled"
    assert found["alone-llama"]["compiled"]["ratio"] > 0
    assert found["exposed"]["ms"].keys() == {"nothing sent", "at once", "beside"}
    assert found["swarm"]["steps"] > 3
    assert found["tests"]["not passed"] == []
    assert " passed" in found["tests"]["in all"]
