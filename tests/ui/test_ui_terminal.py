"""A played node in a real terminal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ui.played_node import MODERN, Node
from tests.ui.playing import recorded

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
PATIENCE_S = 60.0


class Terminal:
    """A terminal of 80 x 24 that shows a played node, which tells of the recorded run."""

    def __init__(self, folder: Path) -> None:
        self._socket, self._node = str(folder / "tmux"), Node(folder / "n.sock", MODERN)
        attach = f"{sys.executable} -m client.cli.main attach --socket {folder / 'n.sock'}"
        variables = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "TZ": "UTC"}
        command = f"{attach}; echo exit code $?; sleep {PATIENCE_S}"
        self._tmux(
            "new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", command,
            env={**os.environ, **variables},
        )  # fmt: skip
        deadline = time.monotonic() + PATIENCE_S
        while all(method != "subscribe" for method, _ in self._node.asked):
            assert time.monotonic() < deadline, self._tmux("capture-pane", "-p")
            time.sleep(0.05)
        for update in recorded():
            self._node.update(update)

    def close(self) -> None:
        """End it."""
        self._tmux("kill-server")
        self._node.close()

    def press(self, *keys: str) -> None:
        """Press keys."""
        self._tmux("send-keys", *keys)

    def wait_for(self, words: str, *, shown: bool = True) -> str:
        """Return the screen once it shows these words, or does so no more."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            screen = self._tmux("capture-pane", "-p")
            if (words in screen) == shown:
                return screen
            assert time.monotonic() < deadline, f"no {words!r} in:\n{screen}"
            time.sleep(0.1)

    def _tmux(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, "-f", "/dev/null", *arguments],
            capture_output=True, text=True, timeout=30, check=False, env=env,
        )  # fmt: skip
        return done.stdout


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short path, for tmux's socket."""
    return tmp_path_factory.mktemp("t")


@pytest.mark.slow
def test_it_shows_a_node_answers_keys_and_ends_with_zero(folder: Path) -> None:
    terminal = Terminal(folder)
    try:
        screen = terminal.wait_for("step 90")
        assert all(len(line) <= 80 for line in screen.splitlines())
        terminal.wait_for("loss")
        terminal.press("4")
        terminal.wait_for("info and above")
        terminal.press("/")
        terminal.wait_for("text to look for")
        terminal.press("covered")
        terminal.wait_for("that match")
        terminal.press("Escape")
        terminal.wait_for("that match", shown=False)
        terminal.press("q")
        terminal.wait_for("How do you want to quit?")
        terminal.press("d")
        terminal.wait_for("exit code 0")
    finally:
        terminal.close()
