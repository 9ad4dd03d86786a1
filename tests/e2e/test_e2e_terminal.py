"""A first session in a real terminal: join, watch, pause, go on, detach, attach, finish."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from client.cli.founding.options import RunChoices
from client.control.client import running_nodes
from client.control.snapshot import Snapshot
from client.store.paths import runtime_folder
from tests.support.e2e_local import HOST, REPOSITORY, environment, found, snapshot_of, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux"),
]
PROMPT = "shell$ "


class Shell:
    """A shell in a terminal of 100 x 30 with ``volunteer`` in it."""

    def __init__(self, folder: Path, home: Path) -> None:
        self._socket = str(folder / "tmux")
        command = folder / "volunteer"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m client.cli.main "$@"\n')
        command.chmod(0o755)
        variables = {"PS1": PROMPT, "PYTHONPATH": str(REPOSITORY), "LANG": "C.UTF-8"}
        inherited = environment(home)
        self._tmux(
            *("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", "-c", str(folder)),
            *("sh",),
            variables={**inherited, **variables, "PATH": f"{folder}:{inherited['PATH']}"},
        )

    def close(self) -> None:
        self._tmux("kill-server")

    def type(self, line: str) -> None:
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Return the match of what the screen shows once it shows it."""
        screen = ""

        def look() -> re.Match[str] | None:
            nonlocal screen
            screen = self._tmux("capture-pane", "-p")
            return re.search(pattern, screen)

        try:
            return wait_for(look, f"{pattern!r} is shown", timeout_s=120.0)
        except AssertionError as error:
            raise AssertionError(f"{error}; the screen shows:\n{screen}") from error

    def _tmux(self, *arguments: str, variables: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, *arguments],
            env=variables,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return done.stdout


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vol") as name:
        run = RunChoices(
            name="terminal", stages=1, steps=50000, sequences=2, microbatches=4, measure=False
        )
        found(Path(name), "v1", run)
        try:
            yield Path(name)
        finally:
            for _, node in running_nodes(runtime_folder(Path(name) / "v1")):
                with suppress(psutil.Error):
                    process = psutil.Process(node.pid)
                    for one in (*process.children(recursive=True), process):
                        one.kill()


def _state(home: Path, state: str) -> Snapshot:
    def look() -> Snapshot | None:
        now = snapshot_of(home)
        return now if now is not None and now.state == state else None

    return wait_for(look, state)


def test_the_first_minutes(folder: Path) -> None:
    home = folder / "v1"
    shell = Shell(folder, home)
    try:
        shell.type(f"volunteer join --swarm x.swarm --listen-host {HOST} --threads 1; echo CODE $?")
        shell.wait_for(r"Agree\? \[y/N\]")
        shell.type("y")
        shell.wait_for("TRAINING")
        first = float(shell.wait_for(r"loss (\d\.\d+)")[1])
        shell.wait_for(r"step [1-9]\d+ of")
        wait_for(
            lambda: float(shell.wait_for(r"loss (\d\.\d+)")[1]) < first or None, "the loss falls"
        )
        pid = _state(home, "training").pid

        shell.press("p")
        shell.wait_for("PAUSED")
        wait_for(lambda: None if psutil.Process(pid).children() else True, "the worker is gone")
        shell.press("p")
        shell.wait_for("TRAINING")

        shell.press("d")
        shell.wait_for("CODE 0")
        at = _state(home, "training")
        assert at.pid == pid, "leaving the screen leaves it running"
        shell.type("clear; volunteer attach; echo CODE $?")
        shell.wait_for("TRAINING")
        assert _state(home, "training").step > at.step

        shell.press("f")
        shell.wait_for("Finish")
        shell.press("f")
        shell.wait_for("CODE 0")
        wait_for(lambda: None if psutil.pid_exists(pid) else True, "the volunteer has left")
        shell.type("clear; volunteer status; echo CODE $?")
        shell.wait_for("CODE 3")
    finally:
        shell.close()


def test_an_invite_from_a_pipe_is_asked_about_too(folder: Path) -> None:
    """The pipe gives the invite; the answer, and then the screen's keys, come from the terminal."""
    home = folder / "v1"
    shell = Shell(folder, home)
    join = f"volunteer join --swarm - --listen-host {HOST} --threads 1"
    try:
        shell.type(f"cat x.swarm | {join} --detach; echo CODE $?")
        shell.wait_for(r"The swarm terminal ")
        shell.wait_for(r"Agree\? \[y/N\]")
        shell.type("n")
        shell.wait_for("nothing was started\nCODE 130")
        assert snapshot_of(home) is None
        shell.type(f"clear; cat x.swarm | {join}; echo CODE $?")
        shell.wait_for(r"Agree\? \[y/N\]")
        shell.type("y")
        shell.wait_for("TRAINING")
        shell.press("d")
        shell.wait_for("CODE 0")
        pid = _state(home, "training").pid
        shell.type("clear; volunteer stop; echo CODE $?")
        wait_for(lambda: None if psutil.pid_exists(pid) else True, "the volunteer has left")
    finally:
        shell.close()
