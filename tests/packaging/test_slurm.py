"""The Slurm script: what it does at each signal, with stand-ins for Slurm."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.packaging.stand_ins import StandIns
from tests.support.cli_process import apart

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "packaging" / "slurm" / "volunteer.sbatch"
REQUEUE = "scontrol requeue 17"


def start(stand_ins: StandIns, **more: str) -> subprocess.Popen[str]:
    environment = {
        "PATH": f"{stand_ins.programs}:{os.environ['PATH']}",
        "HOME": str(stand_ins.folder),
        "SLURM_JOB_ID": "17",
        "SLURM_CPUS_PER_TASK": "3",
        "SLURM_MEM_PER_NODE": "1000",
        **more,
    }
    return subprocess.Popen(
        ["bash", str(SCRIPT)], env=environment, stderr=subprocess.PIPE, text=True
    )


def end(job: subprocess.Popen[str]) -> int:
    try:
        job.communicate(timeout=60)
    finally:
        job.kill()
    return job.returncode


def test_slurm_sees_every_directive() -> None:
    """It stops looking at the first line that is neither empty nor a comment."""
    lines = SCRIPT.read_text().splitlines()
    first_command = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    directives = [n for n, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert max(directives) < first_command
    assert "#SBATCH --requeue" in lines
    assert "#SBATCH --ntasks-per-node=1" in lines
    assert "#SBATCH --signal=B:USR1@180" in lines


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_reaches_the_client_once_and_the_job_is_queued_again(
    number: signal.Signals, tmp_path: Path
) -> None:
    stand_ins = StandIns(tmp_path)
    job = start(stand_ins)
    stand_ins.wait_until_noted("ready")
    job.send_signal(number)
    stand_ins.wait_until_noted("SIGTERM")
    job.send_signal(signal.SIGTERM)  # Slurm insists; the client must be left in peace
    assert end(job) == 0
    lines = stand_ins.lines()
    assert lines.count("SIGTERM") == 1
    assert lines.index("said goodbye") < lines.index(REQUEUE)


def test_a_client_that_slurm_may_have_told_already_is_asked_not_told_again(tmp_path: Path) -> None:
    stand_ins = StandIns(tmp_path)
    stand_ins.client_can_finish()
    job = start(stand_ins)
    stand_ins.wait_until_noted("ready")
    job.send_signal(signal.SIGTERM)
    assert end(job) == 0
    assert "finished" in stand_ins.lines()
    assert "SIGTERM" not in stand_ins.lines()
    assert REQUEUE in stand_ins.lines()


def test_the_client_is_told_what_slurm_granted(tmp_path: Path) -> None:
    stand_ins = StandIns(tmp_path)
    client = stand_ins.programs / "volunteer"
    client.write_text(f'#!/bin/sh\nenv >"{tmp_path}/environment"\n')
    assert end(start(stand_ins)) == 0
    seen = (tmp_path / "environment").read_text().splitlines()
    assert "VOLUNTEER_THREADS=3" in seen
    assert "VOLUNTEER_MEMORY_LIMIT_BYTES=850MiB" in seen
    assert any(line.startswith("VOLUNTEER_HOME=") and line.endswith("/17") for line in seen)


def test_a_cancelled_job_is_not_queued_again(tmp_path: Path) -> None:
    stand_ins = StandIns(tmp_path)
    job = start(stand_ins)
    stand_ins.wait_until_noted("ready")
    stand_ins.job_state("CANCELLED")
    job.send_signal(signal.SIGTERM)
    assert end(job) == 0
    assert REQUEUE not in stand_ins.lines()


@pytest.mark.parametrize(
    ("code", "again"), [(0, False), (1, False), (69, True), (75, True), (77, False), (78, False)]
)
def test_the_end_of_the_client_decides_what_becomes_of_the_job(
    code: int, again: bool, tmp_path: Path
) -> None:
    stand_ins = StandIns(tmp_path)
    stand_ins.client_ends_with(code)
    assert end(start(stand_ins)) == (0 if again else code)
    assert (REQUEUE in stand_ins.lines()) is again


def test_a_job_does_not_come_back_for_ever(tmp_path: Path) -> None:
    stand_ins = StandIns(tmp_path)
    stand_ins.client_ends_with(69)
    assert end(start(stand_ins, SLURM_RESTART_COUNT="100")) == 69


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("script", ["packaging/slurm/volunteer.sbatch", ".ci/run"])
def test_shellcheck_has_nothing_to_say(script: str) -> None:
    verdict = apart("shellcheck", script)
    assert (verdict.returncode, verdict.stdout) == (0, "")
