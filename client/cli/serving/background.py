"""Starts a node in the background and waits until it takes part, or reports why it does not.

A node answers on its control socket before it has measured the machine and read the text; until it
has entered the swarm, its start may still fail.

The node is a process in a session of its own, so that closing the terminal, or killing the screen,
does not touch it. The resolved swarm and settings are passed through a pipe: no process list shows
them, and later changes of their sources have no effect.
"""

import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from client.cli.logging.log_file import ERRORS_NAME, open_errors
from client.cli.reach.home import Home
from client.cli.terminal.output import say
from client.config import Resolved
from client.control.client import running_nodes
from client.control.snapshot import Snapshot
from client.errors import ExitCode, UsageError, UserError
from client.store.paths import make_private

COMMAND = (sys.executable, "-m", "client.cli.main")
HANDED_OVER = ("join", "--handed-over")
LOOK_S = 0.1
GRACE_S = 60.0
"""Seconds for a start, besides the time for dialling the swarm."""
ENDS_S = 30.0
"""Seconds to wait for the end of a start that was interrupted."""
MAX_ERROR_BYTES = 4000
SILENT = (
    "it said nothing: the machine may have run out of memory; volunteer join --headless starts it "
    "in this terminal"
)
MUTE = "the disk of {} has no room for the reason: free space, as with volunteer cache --prune"


@dataclass(frozen=True, slots=True)
class Errors:
    """The output of a started process: ``path`` from ``begin`` on, bytes."""

    path: Path
    begin: int

    def lines(self) -> list[str]:
        """Return the last lines of it."""
        with self.path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(self.begin, end - MAX_ERROR_BYTES))
            return file.read().decode(errors="replace").splitlines()


class Handover(Struct, frozen=True, kw_only=True):
    """What a node is started with; to one in the background as one JSON document on stdin."""

    swarm: str
    """The invite, a member's address or the text of the ``.swarm`` file."""
    resolved: Resolved
    data: str | None = None
    """Absolute path of the training data, where this machine has them."""
    exit_when_done: bool = False
    relay_only: bool = False
    """Relay for others, hold no stage."""


def read_handover(stdin: BinaryIO) -> Handover:
    """Return the document written by the process that started this one.

    Raises:
        UserError: it is no such document.
    """
    try:
        return msgspec.json.decode(stdin.read(), type=Handover)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        problem = f"--handed-over is for a start in the background: {error}"
        raise UsageError(problem, "use volunteer join --detach") from error


def start(home: Home, handover: Handover) -> tuple[Path, Snapshot]:
    """Start ``volunteer join --headless`` in the background; return its socket and status when it
    takes part, or is still starting after a while.

    Args:
        home: of the volunteer; its log folder gets the output of the process.
        handover: passed to the process.

    Raises:
        UserError: it ended, with its reason and exit code, or does not answer.
    """
    make_private(home.folders.data)
    with open_errors(home.folders.logs) as stderr:  # the process itself adds its traceback
        errors = Errors(home.folders.logs / ERRORS_NAME, stderr.tell())
        process = subprocess.Popen(
            [*COMMAND, *HANDED_OVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        _hand_over(process, handover)
        return _wait_until_it_takes_part(process, home, errors)
    except KeyboardInterrupt:
        _end(process)
        raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what was started, so that the next start does not meet it; another interrupt does not
    wait for it."""
    say("ending what was started ...")
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDS_S)


def _hand_over(process: subprocess.Popen[bytes], handover: Handover) -> None:
    if process.stdin is None:
        raise RuntimeError("the pipe was asked for")
    try:
        with process.stdin as pipe:
            pipe.write(msgspec.json.encode(handover))
    except BrokenPipeError:
        return  # it has ended; its output has the reason


def _wait_until_it_takes_part(
    process: subprocess.Popen[bytes], home: Home, errors: Errors
) -> tuple[Path, Snapshot]:
    deadline = time.monotonic() + home.settings.dial_timeout_s + GRACE_S
    answers: tuple[Path, Snapshot] | None = None
    said = ""
    while time.monotonic() < deadline:
        if (code := process.poll()) is not None:
            raise _ended(code, errors)
        answers = _answering(process.pid, home.folders.runtime) or answers
        if answers is not None:
            _, now = answers
            if now.started:
                return answers
            if now.reason != said:
                said = now.reason
                say(f"{said} ...")
        time.sleep(LOOK_S)
    if answers is not None:
        say("it has not entered the swarm yet; volunteer status shows its progress")
        return answers
    raise UserError(
        f"process {process.pid} was started but does not answer yet",
        "read volunteer logs; it keeps trying",
        ExitCode.TEMPORARY,
    )


def _answering(pid: int, folder: Path) -> tuple[Path, Snapshot] | None:
    """Return the node of this process if it answers."""
    nodes = running_nodes(folder)
    return next((found for found in nodes if found[1].pid == pid), None)


def _is_full(folder: Path) -> bool:
    """Whether the disk has no room for what the process has to say."""
    with suppress(OSError):
        return shutil.disk_usage(folder).free < MAX_ERROR_BYTES
    return False


def _ended(code: int, errors: Errors) -> UserError:
    """Return the process's own error: its last message and its exit code."""
    said, exit_code = errors.lines(), ExitCode(code) if code else ExitCode.TEMPORARY
    start = next((i for i in reversed(range(len(said))) if said[i].startswith("volunteer: ")), None)
    if start is None:
        for line in said[-5:]:
            say(line)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        silent = MUTE.format(errors.path.parent) if _is_full(errors.path.parent) else SILENT
        next_step = f"read {errors.path}" if said else silent
        return UserError(f"the volunteer {how}", next_step, exit_code)
    next_step = " ".join(line.strip() for line in said[start + 1 :])
    return UserError(said[start].removeprefix("volunteer: "), next_step, exit_code)
