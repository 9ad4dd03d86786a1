"""Runs parts one after the other, each a process with a deadline, and keeps every row at once.

Imports none of the parts: one that cannot be imported fails alone.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from client.lab.local_swarm import interrupts_wait

REPOSITORY = Path(__file__).parents[3]
OUT = Path("gpu-out")
Found = dict[str, Any]
SHARES_S = {
    "rates": 40.0,
    "alone-gpt2": 150.0,
    "alone-llama": 150.0,
    "exposed": 60.0,
    "swarm": 120.0,
    "memory": 0.0,
    "tests": 60.0,
}
"""Seconds of each part of `quick`, in order; 0: what others leave."""
LEAST_S = 3.0
GRACE_S = 5.0
"""Between SIGTERM and SIGKILL."""


def tell(asked: argparse.Namespace, found: Found) -> None:
    """Print a row of a part and add it to the file, from which no crash takes it."""
    line = json.dumps({"part": asked.parts[0], **found}) + "\n"
    print(line, end="", flush=True)
    with asked.json.open("a") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def run_all(asked: argparse.Namespace) -> int:
    """Run parts; what one does not use of its seconds is left for the later ones.

    Returns:
        an exit status: 0 if each part has printed a row and ended well.
    """
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.touch()
    due = time.monotonic()
    failed = False
    for part, share_s in shared_out(asked.parts, asked.deadline).items():
        asked.parts = [part]
        due += share_s
        began = time.monotonic()
        problem = "interrupted"
        try:
            problem = run(asked, due)
        finally:
            ended = {"failed": problem} if problem else {"ended": "well"}
            tell(asked, {**ended, "seconds": round(time.monotonic() - began, 1)})
        failed = failed or bool(problem)
    return int(failed)


def shared_out(parts: Sequence[str], deadline_s: float) -> dict[str, float]:
    """Return the seconds of each part: all of `quick` as `SHARES_S` says, some in equal shares."""
    if len(parts) < len(SHARES_S):
        return dict.fromkeys(parts, deadline_s / len(parts))
    scale = min(1.0, deadline_s / sum(SHARES_S.values()))
    rest = [part for part in parts if not SHARES_S[part]]
    left = (deadline_s - scale * sum(SHARES_S.values())) / len(rest)
    return {part: scale * SHARES_S[part] or left for part in parts}


def run(asked: argparse.Namespace, due: float) -> str:
    """Run a part until ``due`` (monotonic seconds) at most; return what went wrong, or nothing."""
    limit = due - time.monotonic()
    if limit < LEAST_S:
        return "no time is left for it"
    flags = ["--device", asked.device, "--deadline", str(limit)]
    flags += ["--json", str(asked.json), "--cache", str(asked.cache)]
    flags += ["--small"] * asked.small
    flags += ["--peak", str(asked.peak)] if asked.peak else []
    command = [sys.executable, "-m", "tests.bench.gpu", *asked.parts, "--child", *flags]
    before = len(asked.json.read_text())
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = None
        try:
            with interrupts_wait():
                process = subprocess.Popen(
                    command,
                    stderr=said,
                    cwd=REPOSITORY,
                    env={**os.environ, **compiler(asked.cache)},
                    start_new_session=True,
                )
            status = process.wait(limit)
            problem = f"status {status}" if status else ""
        except subprocess.TimeoutExpired:
            problem = f"not done within {limit:.0f} s"
        finally:
            if process is not None:
                end(process)
        if problem:
            said.seek(0)
            problem += ": " + "\n".join(said.read().splitlines()[-12:])
    told = [json.loads(line) for line in asked.json.read_text()[before:].splitlines()]
    for row in told:
        asked.peak = row.get("peak_flop_per_s", asked.peak)
    return problem if told else problem or "it printed nothing"


def compiler(cache: Path) -> dict[str, str]:
    """Return the environment in which torch compiles on all cores and keeps what it makes."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": str(cores()),
    }


def end(process: subprocess.Popen[bytes]) -> None:
    """End a part with all that it has started, also in sessions of their own."""
    with suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
        try:
            _signal(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        finally:
            for one in below:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)
