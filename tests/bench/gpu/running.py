"""Runs parts one after the other, each a process with a deadline, and keeps every row at once.

Imports none of the parts: one that cannot be imported fails alone.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

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
    "repeats": 0.0,
    "tests": 60.0,
}
"""Seconds of each part of `quick`, in order; 0: what others leave."""
LEAST_S = 3.0
GRACE_S = 5.0
"""Between SIGTERM and SIGKILL."""


def tell(found: Found) -> None:
    """Print a row of this process's part: it is kept also if the part takes too long."""
    print(json.dumps(found), flush=True)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


class Rows:
    """Prints rows and adds them to a file, from which a crash takes none."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")

    def write(self, row: Found) -> None:
        """Keep a row."""
        line = json.dumps(row)
        print(line, flush=True)
        self._file.write(line + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def run_all(parts: Sequence[str], asked: argparse.Namespace, rows: Rows) -> int:
    """Run parts; what one does not use of its seconds is left for the later ones.

    Returns:
        an exit status: 0 if each part has printed a row and ended well.
    """
    due = time.monotonic()
    shares = shared_out(parts, asked.deadline)
    failed = False
    for part in parts:
        due += shares[part]
        began = time.monotonic()
        problem = "interrupted"
        try:
            problem = run(part, asked, rows, due)
        finally:
            ended = {"failed": problem} if problem else {"ended": "well"}
            rows.write({"part": part, **ended, "seconds": round(time.monotonic() - began, 1)})
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


def run(part: str, asked: argparse.Namespace, rows: Rows, due: float) -> str:
    """Run a part until ``due`` (monotonic seconds) at most; return what went wrong, or nothing."""
    limit = due - time.monotonic()
    if limit < LEAST_S:
        return "no time is left for it"
    flags = ["--device", asked.device, "--cache", str(asked.cache), "--deadline", str(limit)]
    flags += ["--small"] * asked.small
    flags += ["--peak", str(asked.peak)] if asked.peak else []
    command = [sys.executable, "-m", "tests.bench.gpu", part, "--child", *flags]
    lines = queue.SimpleQueue[str]()
    told: list[Found] = []

    def keep(until: float) -> None:
        assert process is not None
        for found in rows_of(process, lines, until):
            rows.write({"part": part, **found})
            told.append(found)
            asked.peak = found.get("peak_flop_per_s", asked.peak)

    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = None
        try:
            with interrupts_wait():
                process = subprocess.Popen(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    cwd=REPOSITORY,
                    env={**os.environ, **compiler(asked.cache)},
                    start_new_session=True,
                    text=True,
                )
            threading.Thread(target=feed, args=(process.stdout, lines), daemon=True).start()
            keep(due)
            status = process.wait(max(0.0, due - time.monotonic()))
            problem = f"status {status}" if status else "" if told else "it printed nothing"
        except subprocess.TimeoutExpired:
            problem = f"not done within {limit:.0f} s"
        finally:
            if process is not None:
                end(process)
        if problem:
            keep(time.monotonic() + 1)  # what it said when it was ended
            said.seek(0)
            problem += ": " + "\n".join(said.read().splitlines()[-12:])
    return problem


def compiler(cache: Path) -> dict[str, str]:
    """Return the environment in which torch compiles on all cores and keeps what it makes."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": str(cores()),
    }


def rows_of(
    process: subprocess.Popen[str], lines: queue.SimpleQueue[str], until: float
) -> Iterator[Found]:
    """Yield rows as a process prints them, until it has ended: what it has started may hold its
    output open for longer. What is no row goes to stderr.

    Raises:
        TimeoutExpired: it still runs when the time (monotonic seconds) is over.
    """
    while True:
        try:
            line = lines.get(timeout=min(1.0, max(0.0, until - time.monotonic())))
        except queue.Empty:
            if process.poll() is not None:
                return
            if time.monotonic() >= until:
                raise subprocess.TimeoutExpired(process.args, until) from None
            continue
        if not line:
            return
        try:
            yield dict(json.loads(line))
        except (TypeError, ValueError):
            print(line, end="", file=sys.stderr, flush=True)


def feed(stdout: IO[str], lines: queue.SimpleQueue[str]) -> None:
    """Pass on what a process prints, and that it has ended."""
    with suppress(OSError, ValueError):
        for line in stdout:
            lines.put(line)
    lines.put("")


def end(process: subprocess.Popen[str]) -> None:
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
