"""Tests that run in copies of the process that collected them."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.cli_process import apart

MODULE = """
import os
import pytest

@pytest.fixture(scope="module")
def process():
    return os.getpid()

@pytest.mark.parametrize("number", range(3))
def test_fine(process, number, tmp_path):
    assert process == os.getpid()
    (tmp_path / "file").write_text("")

def test_wrong():
    print("said before")
    words = "found out"
    assert words == "found nothing"
"""
DEADLY = "import os\ndef test_deadly():\n    os.abort()\n"


def run(folder: Path, *modules: str) -> subprocess.CompletedProcess[str]:
    for number, text in enumerate(modules):
        (folder / f"test_{number}.py").write_text(text)
    plugins = ["-p", "tests.support.cores", "--cores", "2", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "-c", os.devnull, str(folder)]
    return apart(*command, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


def test_every_test_runs_once_and_what_failed_is_told(tmp_path: Path) -> None:
    done = run(tmp_path, MODULE, MODULE, MODULE)
    assert done.returncode == 1
    assert "3 failed, 9 passed" in done.stdout
    assert done.stdout.count("\nsaid before\n") == 3
    assert done.stdout.count("E       AssertionError: assert 'found out' == 'found nothing'") == 3


def test_a_process_that_dies_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, MODULE, DEADLY)
    assert done.returncode == 1
    assert "a process died after" in done.stdout
