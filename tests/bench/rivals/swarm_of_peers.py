"""Processes that are spoken to line by line: started together, and none is left behind."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from client.compute.process import ALLOCATOR

ONE_THREAD = {**ALLOCATOR, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""For every contender alike: one thread, and the settings of the allocator that our worker has."""
ROOT = Path(__file__).parents[3]


class PeerFailed(Exception):
    """A process ended or said nothing in time; with its last words."""


class Talker:
    """One process; its standard error goes to a file, its standard output is read by a thread."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environ(env),
                start_new_session=True,  # what it starts ends with it
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def say(self, line: str) -> None:
        """Send a line."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerFailed(self._last_words("it has ended")) from error

    def line(self, timeout_s: float) -> str:
        """Wait for its next line.

        Raises:
            PeerFailed: it ended, or none comes in time.
        """
        deadline = time.monotonic() + timeout_s
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise PeerFailed(self._last_words(f"nothing for {timeout_s:.0f} s")) from None
        if line is None:
            raise PeerFailed(self._last_words("it has ended"))
        return line

    def cpu_s(self) -> float:
        """Return the CPU seconds that it and what it started have used."""
        process = psutil.Process(self._process.pid)
        used = 0.0
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                times = one.cpu_times()
                used += times.user + times.system
        return used

    def end(self, grace_s: float = 5.0) -> None:
        """Close its input, and kill what is left of it and its children after a while."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(grace_s)  # something that left the group may hold the other end
        if not self._reader.is_alive() and self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _last_words(self, problem: str) -> str:
        return f"{problem}\n" + "\n".join(self._log.read_text().splitlines()[-12:])


def environ(extra: Mapping[str, str]) -> dict[str, str]:
    """Return our environment with more in it; modules of this repository are found."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **extra}


def cpu_s(talkers: Sequence[Talker]) -> float:
    """Return the CPU seconds that all of them have used."""
    return sum(talker.cpu_s() for talker in talkers)


@contextmanager
def talking(
    commands: Sequence[Sequence[str]], folder: Path, env: Mapping[str, str] | None = None
) -> Iterator[list[Talker]]:
    """Start processes and end them with the block."""
    talkers: list[Talker] = []
    try:
        for number, command in enumerate(commands):
            talkers.append(Talker(command, folder / f"{number}.log", env or {}))
        yield talkers
    finally:
        enders = [threading.Thread(target=talker.end) for talker in talkers]
        for ender in enders:
            ender.start()
        for ender in enders:
            ender.join()
