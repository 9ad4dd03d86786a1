"""Every shell script of the repository, read by shellcheck."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("script", ["packaging/slurm/volunteer.sbatch", ".ci/run"])
def test_shellcheck_has_nothing_to_say(script: str) -> None:
    verdict = subprocess.run(
        ["shellcheck", str(ROOT / script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (verdict.returncode, verdict.stdout) == (0, "")
