"""What every test keeps to: one that takes too much, or skips unexpectedly, fails the run."""

import os
import sys
from pathlib import Path

from tests.support.budgets import EXPECTED_SKIPS, MUST_RUN
from tests.support.cli_process import apart

BUDGET = "from tests.support import budgets\nbudgets.MOST_S = 0.1\n"
SPENDING = """
import subprocess, sys, time
import pytest

SPEND = "import time\\nwhile time.process_time() < 0.5: pass\\nprint(flush=True)\\ninput()"

@pytest.fixture(scope="module")
def shared():
    exec(SPEND.partition("print")[0])

def test_its_fixture_spends(shared):
    pass

def test_it_sleeps():
    time.sleep(0.5)

def test_its_child_has_ended():
    subprocess.run([sys.executable, "-c", SPEND], input=b"\\n")

def test_its_child_lives_on():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    subprocess.Popen([sys.executable, "-c", SPEND], **pipes).stdout.readline()

@pytest.mark.slow
def test_it_is_marked():
    subprocess.run([sys.executable, "-c", SPEND], input=b"\\n")
"""
SKIPPING = f"""
import pytest

def test_of_nothing():
    pass

@pytest.mark.skipif(True, reason="tmux is not installed")
def test_of_a_terminal():
    pass

def test_of_other_users():
    pytest.skip("{EXPECTED_SKIPS[0]}")

@pytest.mark.xfail(reason="known")
def test_of_a_fault():
    assert False
"""
MODULE = "import pytest\npytest.importorskip('no_such_library')"


def failed(folder: Path, tests: str, *, must_run: bool = False) -> set[str]:
    """Run the tests of a file; what failed."""
    (folder / "conftest.py").write_text(BUDGET)
    (folder / "test_it.py").write_text(tests)
    variables = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", MUST_RUN: "1" if must_run else ""}
    plugins = ["-p", "tests.support.budgets", "-p", "no:cacheprovider", "-W", "ignore"]
    options = ["-q", "-rfE", "--rootdir", str(folder), "-c", os.devnull]
    run = apart(sys.executable, "-m", "pytest", *plugins, *options, str(folder), **variables)
    lines = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR "))]
    assert bool(lines) == bool(run.returncode), run.stdout
    return {line.split(" - ")[0].rpartition("::")[2].split("/")[-1] for line in lines}


def test_a_test_that_spends_too_much_fails_with_what_its_children_spend(tmp_path: Path) -> None:
    spent = {"test_its_child_has_ended", "test_its_child_lives_on"}
    if sys.platform != "linux":
        spent -= {"test_its_child_lives_on"}
    assert failed(tmp_path, SPENDING) == spent


def test_where_all_must_run_only_expected_skips_are_left(tmp_path: Path) -> None:
    assert not failed(tmp_path, SKIPPING)
    assert failed(tmp_path, SKIPPING, must_run=True) == {"test_of_a_terminal"}


def test_where_all_must_run_no_module_is_left_out(tmp_path: Path) -> None:
    assert failed(tmp_path, MODULE, must_run=True) == {"test_it.py"}
