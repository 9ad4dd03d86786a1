"""Feeds an experiment tracker (wandb, trackio), which runs as a process of its own.

The node never imports one: they are large, and start threads and servers of their own. The process
is started with the first record and told a line of JSON for each; when the node ends, its input
ends, and it finishes by itself. If it has ended before, it is started again with the next records.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import msgspec

from client.store.step_log import LogRecord

PROGRAM: Final = "client.train.reporting.tracker_process"
DEFAULT_PROJECT: Final = "volunteer"
MAX_SAID: Final = 200
END_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """A tracker and where in it the run is.

    Fields:
        kind: name of its package.
        project: as the tracker calls it.
        run: name of the run, the same in every session of this volunteer.
        folder: for what it keeps on this disk, unless its own variables name another.
    """

    kind: str
    project: str
    run: str
    folder: Path


def target(spelled: str, run: str, folder: Path) -> Target:
    """Return what ``wandb`` or ``wandb:project`` stands for."""
    kind, _, project = spelled.partition(":")
    return Target(kind, project or DEFAULT_PROJECT, run, folder)


def is_installed(kind: str) -> bool:
    """Whether a tracker's package is there; it is not imported."""
    return importlib.util.find_spec(kind) is not None


class Tracker:
    """A tracker's process; a ``Log`` of ``StepWriter``."""

    def __init__(self, of: Target) -> None:
        self._of = of
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    @property
    def name(self) -> str:
        """Of it, for its owner."""
        return f"{self._of.kind} (project {self._of.project})"

    @property
    def advice(self) -> str:
        """What its owner can do if it cannot be written."""
        return "See what it says, or leave --log-to out at the next start"

    def append(self, records: Sequence[LogRecord]) -> None:
        """Tell it of records.

        Raises:
            OSError: it cannot be started, or has ended.
        """
        process = self._running()
        assert process.stdin is not None
        try:
            for record in records:
                told = {"step": record.step, "metrics": record.values}
                process.stdin.write(msgspec.json.encode(told) + b"\n")
            process.stdin.flush()
        except OSError as error:
            problem = self._why_it_ended()
            self.close()
            raise OSError(0, problem) from error

    def close(self) -> subprocess.Popen[bytes] | None:
        """End its input; it finishes by itself. Return the process, if there is one."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None
        return process

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        if self._process is not None:
            problem = self._why_it_ended()
            self.close()
            raise OSError(0, problem)
        of = self._of
        of.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (``close`` does)
        self._process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, of.kind, of.project, of.run, str(of.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,  # it finishes after an interrupt of ours
        )
        return self._process

    def _why_it_ended(self) -> str:
        """Return the last words of the process, which is gone or about to be."""
        said = ""
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        if self._errors is not None:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            said = lines[-1][:MAX_SAID] if lines else ""
        return f"its process has ended: {said}" if said else "its process has ended"
