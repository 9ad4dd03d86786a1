"""A recorded run in a real terminal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ui.playing import RUN

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
PATIENCE_S = 60.0


class Terminal:
    """A terminal of 80 x 24 that runs ``volunteer replay``."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._socket = str(folder / "tmux")
        replay = f"{sys.executable} -m client.cli.main replay {RUN} {' '.join(flags)}"
        variables = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "TZ": "UTC"}
        command = f"{replay}; echo exit code $?; sleep {PATIENCE_S}"
        self._tmux(
            "new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", command,
            env={**os.environ, **variables},
        )  # fmt: skip

    def close(self) -> None:
        """End it."""
        self._tmux("kill-server")

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
def test_a_recording_plays_answers_keys_and_ends_with_zero(folder: Path) -> None:
    terminal = Terminal(folder, "--speed", "100")
    try:
        screen = terminal.wait_for("RECORDING")
        assert all(len(line) <= 80 for line in screen.splitlines())
        terminal.wait_for("loss")
        terminal.press("5")
        terminal.wait_for("1 fault, all repaired")
        terminal.press("6")
        terminal.wait_for("info and above")
        terminal.press("/")
        terminal.press("covered")
        terminal.wait_for("that match")
        terminal.press("Escape")
        terminal.wait_for("that match", shown=False)
        terminal.press("q")
        terminal.wait_for("this is a recording")
        terminal.press("d")
        terminal.wait_for("exit code 0")
    finally:
        terminal.close()


def test_without_a_terminal_it_says_what_it_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "client.cli.main", "replay", str(RUN)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 2
    assert "replay needs a terminal" in done.stderr


@pytest.mark.slow
def test_ascii_is_all_that_an_ascii_terminal_gets(folder: Path) -> None:
    terminal = Terminal(folder, "--speed", "100", "--ascii")
    try:
        assert terminal.wait_for("- Loss -").isascii()
        terminal.press("C-c")
        terminal.wait_for("this is a recording")
        terminal.press("d")
        terminal.wait_for("exit code 0")
    finally:
        terminal.close()
