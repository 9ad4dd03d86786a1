"""A session in a real terminal that begins with an invite from a pipe."""

from __future__ import annotations

import shutil
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
from tests.support.e2e_local import HOST, found, snapshot_of, wait_for
from tests.support.terminal import Shell

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux"),
]


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


def test_an_invite_from_a_pipe_is_asked_about(folder: Path) -> None:
    """The pipe gives the invite; the answer, and then the screen's keys, come from the terminal."""
    home = folder / "v1"
    shell = Shell(folder, home, columns=100, rows=30)
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
        shell.type("clear; volunteer finish --yes --wait-s 0; echo CODE $?")
        wait_for(lambda: None if psutil.pid_exists(pid) else True, "the volunteer has left")
    finally:
        shell.close()
