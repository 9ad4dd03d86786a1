"""The command line with a home of its own: as a process, or within the test's."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from client.cli.main import run
from client.lab.local_swarm import environment

REPOSITORY = Path(__file__).parents[2]


def apart(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """What becomes of a program of its own, in the repository's folder."""
    return subprocess.run(
        command,
        env={**os.environ, **variables},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@contextmanager
def living(program: str, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A process of Python that has said ``up``; it ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **variables},
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "up\n"
        yield process
    finally:
        process.kill()
        process.communicate()


LOCK = """
import sys
from pathlib import Path
from client.store.lock import identity_lock
with identity_lock(Path(sys.argv[1])):
    print("up", flush=True)
    sys.stdin.readline()
"""
"""A program that holds the lock of the identity in a folder."""


class Terminal(io.StringIO):
    """Somebody who types this."""

    def isatty(self) -> bool:
        return True


class Volunteer:
    """Runs ``volunteer`` of a home with some arguments; ``stdin`` and more variables by keyword.

    Args:
        home: of the volunteer.
        folder: in which commands run.
        variables: for all of them.
    """

    def __init__(self, home: Path, folder: Path = REPOSITORY, **variables: str) -> None:
        own = {"COLUMNS": "200", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
        self.environment, self.folder = {**environment(home), **own, **variables}, folder

    def __call__(
        self, *arguments: str, stdin: str = "", timeout_s: float = 180.0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "client.cli.main", *arguments],
            env={**self.environment, **variables},
            input=stdin,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


class Within:
    """Runs ``volunteer`` in this process: for commands that import torch, which takes seconds."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            code = run(arguments)
        except SystemExit as wrong:  # of usage
            code = int(wrong.code or 0)
        said = self._capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, said.out, said.err)

    def ends(self, code: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command that must end with this code."""
        done = self(*arguments)
        assert done.returncode == code, done.stderr
        return done
