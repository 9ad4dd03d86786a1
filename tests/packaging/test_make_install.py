"""What ``make`` installs: for users, for developers, and from which index torch comes."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
echo "$*" >> {log}
case "$*" in
    "-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    "-c import torch" | *--no-index*) exit 1 ;;
esac
"""
"""Makes environments like itself; torch is in none, and pip has no wheel of it at hand."""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no build has CUDA")


def installed(folder: Path, *arguments: str) -> list[str]:
    """Run make on what it needs, with a Python that notes its arguments; return pip's."""
    log, python = folder / "log", folder / "python"
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    python.write_text(PYTHON.format(log=log))
    python.chmod(0o755)
    command = ["make", "-s", f"CANDIDATES={python}", *arguments]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    calls = log.read_text().splitlines()
    return [call.partition(" install -qq --disable-pip-version-check ")[2] for call in calls]


def test_users_do_without_what_developers_need(tmp_path: Path) -> None:
    calls = installed(tmp_path, "install")
    assert calls[-1] == "-e ."
    assert not any("[dev]" in call for call in calls)
    assert installed(tmp_path, ".venv/installed")[-1] == "-e .[dev]"


@pytest.mark.parametrize("target", ["install", ".venv/installed"])
def test_without_a_card_torch_is_one_for_processors(target: str, tmp_path: Path) -> None:
    calls = installed(tmp_path, "CARDS=", target)
    at_hand = next(i for i, call in enumerate(calls) if "--no-index" in call)
    assert calls[at_hand + 1] == (
        "--index-url https://download.pytorch.org/whl/cpu --no-deps torch>=2.6"
    )
    assert calls.index("-e .") > at_hand + 1


def test_with_a_card_torch_is_the_usual_one(tmp_path: Path) -> None:
    assert not any("torch" in call for call in installed(tmp_path, "CARDS=/dev/kfd", "install"))


def test_an_index_can_be_chosen(tmp_path: Path) -> None:
    calls = installed(tmp_path, "CARDS=/dev/kfd", "TORCH_INDEX=https://example.org", "install")
    assert "--index-url https://example.org --no-deps torch>=2.6" in calls
