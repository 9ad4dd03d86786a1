"""Volunteers as separate processes on this machine: start, watch, kill, and always reap them.

Holds child processes and their log files. Every volunteer has a home folder of its own, hence its
own identity, and a process group of its own, so that killing it kills its compute worker too, as
when a machine loses power, and Ctrl-C in the terminal reaches only the program that started them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TypeVar

from client.control.client import ControlClient, ControlError, running_nodes
from client.control.snapshot import EventView, Snapshot
from client.errors import ExitCode, UserError
from client.store.paths import HOME_VARIABLE, runtime_folder

STOP_TIMEOUT_S = 90.0
"""An orderly stop hands off and writes a checkpoint; after this it is killed."""
DATA = "data"
"""A folder beside the swarm file with the training data, which every volunteer is given."""
WAIT_POLL_S = 0.2
"""A look at a volunteer costs it some 10 ms."""
Answer = TypeVar("Answer")


@dataclass
class Member:
    """One volunteer process."""

    name: str
    home: Path
    log: Path
    process: subprocess.Popen[bytes]
    killed_at: float | None = None
    """Unix seconds of its SIGKILL."""
    _control: ControlClient | None = field(default=None, repr=False)
    _last_event: int = 0

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def snapshot(self) -> Snapshot | None:
        """Return its status; None while it does not answer."""
        return self._answer(ControlClient.status)

    def new_events(self) -> list[EventView]:
        """Return the events since the last call."""
        update = self._answer(lambda control: control.update(self._last_event))
        if update is None or not update.events:
            return []
        self._last_event = update.events[-1].seq
        return update.events

    def kill(self) -> float:
        """Send SIGKILL to the volunteer and its worker; return the moment in Unix seconds."""
        self.killed_at = time.time()
        self._signal(signal.SIGKILL)
        self.process.wait()
        self._detach()
        return self.killed_at

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the node, which ends its worker itself."""
        if self.alive:
            self.process.terminate()

    def reap(self, deadline: float) -> None:
        """Wait until ``deadline`` (monotonic seconds), then kill; leaves no process behind."""
        self._detach()
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._signal(signal.SIGKILL)  # also the rest of the group: an orphaned worker
            self.process.wait()

    def log_tail(self, lines: int = 5) -> str:
        """Return the last lines it wrote to stderr."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def _answer(self, ask: Callable[[ControlClient], Answer]) -> Answer | None:
        """Return what the volunteer answers to a question; None while it does not."""
        try:
            if self._control is None and self.alive:
                nodes = running_nodes(runtime_folder(self.home))
                self._control = ControlClient(nodes[0][0], timeout_s=2.0) if nodes else None
            return None if self._control is None else ask(self._control)
        except ControlError:
            self._detach()
            return None

    def _detach(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None


class LocalSwarm:
    """Volunteers on this machine; a context manager that reaps them all when it ends.

    Args:
        swarm_file: of their swarm.
        homes, logs: folders for theirs.
        orderly: whether they may leave in order at the end; else they are killed, for whoever has
            seen what they were started for.
    """

    def __init__(self, swarm_file: Path, homes: Path, logs: Path, *, orderly: bool = True) -> None:
        self._swarm_file = swarm_file
        self._homes = homes
        self._logs = logs
        self._orderly = orderly
        self._committed: dict[int, float] = {}
        self.members: list[Member] = []

    def __enter__(self) -> LocalSwarm:
        return self

    def __exit__(self, *_: object) -> None:
        if self._orderly:
            self.stop()
        else:
            self.kill()

    @property
    def alive(self) -> Iterator[Member]:
        """The running members."""
        return (member for member in self.members if member.alive)

    def start(
        self,
        name: str,
        arguments: Sequence[str] = (),
        *,
        log_name: str = "",
        variables: Mapping[str, str] | None = None,
        program: Sequence[str] = (),
        within: Sequence[str] = (),
        relay_only: bool = False,
    ) -> Member:
        """Start ``volunteer join --headless`` with a home of its own, or ``volunteer relay``.

        Args:
            name: of the volunteer, its home and, unless ``log_name`` is given, its log.
            arguments: further flags.
            log_name: of its log, for one that is started again.
            variables: added to its environment.
            program: what is run in place of ``volunteer``.
            within: a command that becomes the command after it, such as ``ip netns exec NAME``.
            relay_only: start a pure relay.
        """
        home = self._homes / name
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"{log_name or name}.log"
        how = ["relay"] if relay_only else ["join", "--headless"]
        command = [*(program or volunteer_command()), *how, "--swarm", str(self._swarm_file)]
        data = self._swarm_file.with_name(DATA)
        if not relay_only and data.exists() and "--data" not in arguments:
            command += ["--data", str(data)]
        with log.open("wb") as stderr, interrupts_wait():
            process = subprocess.Popen(
                [*within, *command, *arguments],
                env={**environment(home), **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
            member = Member(name, home, log, process)
            self.members.append(member)
        return member

    def wait(self, what: str, happened: Callable[[], object], timeout_s: float) -> None:
        """Return once something has happened, which is asked again and again.

        Raises:
            UserError: it has not in time, or a member has ended that was not killed.
        """
        deadline = time.monotonic() + timeout_s
        while not happened():
            for member in self.members:
                if not member.alive and member.killed_at is None:
                    problem = f"{member.name} ended with {member.process.returncode}"
                    raise UserError(f"{problem}:\n{member.log_tail()}", f"its log is {member.log}")
            if time.monotonic() > deadline:
                tails = (f"{member.name}:\n{member.log_tail()}" for member in self.members)
                raise UserError(
                    "\n".join((f"{what}: not within {timeout_s:.0f} s", *tails)),
                    f"give it less to do, or more time; the logs are in {self._logs}",
                    ExitCode.TEMPORARY,
                )
            time.sleep(WAIT_POLL_S)

    def committed(self) -> dict[int, float]:
        """Return when each step was first committed, in Unix seconds, as members have said."""
        for member in self.members:
            for event in member.new_events():
                step = event.data.get("step")
                if event.kind == "StepCommitted" and isinstance(step, int):
                    known = self._committed.get(step, event.time)
                    self._committed[step] = min(event.time, known)
        return self._committed

    def stop(self) -> None:
        """Stop all members in order, all at once; kill those that do not."""
        for member in self.members:
            member.ask_to_stop()
        self._reap(time.monotonic() + STOP_TIMEOUT_S)

    def kill(self) -> None:
        """Kill all members."""
        self._reap(0.0)

    def _reap(self, deadline: float) -> None:
        try:
            for member in self.members:
                member.reap(deadline)
        except BaseException:  # a second Ctrl-C: stop waiting, but leave no process behind
            for member in self.members:
                member.reap(0.0)
            raise


def environment(home: Path) -> dict[str, str]:
    """Return this process's environment with another home and none of its user's settings."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("VOLUNTEER_")}
    return {**kept, HOME_VARIABLE: str(home)}


def volunteer_command() -> list[str]:
    """Return the command that runs this program with this interpreter."""
    return [sys.executable, "-m", "client.cli.main"]


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """Let an interrupt wait until the end of the block: a process it starts is on the list then."""
    if threading.current_thread() is not threading.main_thread():
        yield  # interrupts reach the main thread only
        return
    came: list[tuple[int, FrameType | None]] = []

    def remember(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    # The handlers of a program only: what is ignored, or ends it at once, stays as it is.
    handlers = {number: handler for number, handler in before.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, remember)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for waiting, frame in came:
        handlers[signal.Signals(waiting)](waiting, frame)


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM, or a terminal that closes, end the block as Ctrl-C does: children are reaped."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup asks it to continue
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
