"""A real terminal, which tests type into and read: a shell in tmux."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.e2e_local import REPOSITORY, environment, wait_for

PROMPT = "shell$ "


class Shell:
    """A shell with ``volunteer`` in it.

    Args:
        folder: its working folder, which gets the command and the terminal's socket.
        home: of the volunteer.
        settings: further variables.
    """

    def __init__(self, folder: Path, home: Path, **settings: str) -> None:
        self._socket = str(folder / "tmux")
        command = folder / "volunteer"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m client.cli.main "$@"\n')
        command.chmod(0o755)
        variables = {"PS1": PROMPT, "PYTHONPATH": str(REPOSITORY), "LANG": "C.UTF-8"}
        inherited = environment(home)
        self._tmux(
            *("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24"),
            *("-c", str(folder), "sh"),
            variables={
                **inherited,
                **variables,
                **settings,
                "PATH": f"{folder}:{inherited['PATH']}",
            },
        )

    def close(self) -> None:
        self._tmux("kill-server")

    def type(self, line: str) -> None:
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)

    def process(self, command: str) -> psutil.Process:
        """Return the process that runs a command of ``volunteer``."""
        shell = psutil.Process(int(self._tmux("display-message", "-p", "#{pane_pid}")))
        return next(one for one in shell.children(recursive=True) if command in one.cmdline())

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
