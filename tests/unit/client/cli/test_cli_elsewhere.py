"""A user who looks in the wrong home is told where volunteers run; a second start is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from client.cli.reach import running as reach
from client.limits import local_volunteers
from client.store.last_run import RunRecord
from client.store.paths import home_folders, make_private
from tests.support.cli_process import Volunteer, Within
from tests.support.control_fakes import FakeProvider
from tests.support.cpu_seconds import cpu_seconds
from tests.support.nodes import node_of

NODE = """
import os, sys
from pathlib import Path
from client.limits.local_volunteers import Board, Notice
from client.store.last_run import RunRecord
from client.store.paths import find_folders, make_private
board = Board(Path(sys.argv[1]))
board.post(Notice(pid=os.getpid(), cpus="1"))
RunRecord(make_private(find_folders().data)).begin("ab" * 32, "my-swarm")
print("up", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of this test's notices; a socket's path must be short."""
    with tempfile.TemporaryDirectory(prefix="vol") as name:
        monkeypatch.setattr(local_volunteers, "SHARED_MEMORY", Path(name))
        yield Path(name)


@contextmanager
def running(folder: Path, home: Path) -> Iterator[int]:
    """A process that is the node of a home; yields its id."""
    home.mkdir(mode=0o700, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", NODE, str(folder)],
        env={**os.environ, "VOLUNTEER_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_status_says_which_others_run_and_how_to_look_at_them(within: Within, folder: Path) -> None:
    home = folder / "second home"
    assert within("status").stderr.startswith("volunteer: no volunteer runs on this machine")
    with running(folder, home) as pid:
        done = within("status")
        assert done.returncode == 3
        assert "no volunteer runs in this home" in done.stderr
        assert f"process {pid} runs in {home}: VOLUNTEER_HOME='{home}' volunteer" in done.stderr
        assert "start one: volunteer join" in done.stderr
    assert "on this machine" in within("status").stderr


def test_the_swarm_is_named_where_the_volunteer_answers(
    within: Within, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = folder / "h"
    with running(folder, home) as pid, node_of(home, FakeProvider()):
        nodes = reach.running_nodes

        def of_this_process(place: Path) -> list[object]:
            from msgspec.structs import replace

            return [(path, replace(node, pid=pid)) for path, node in nodes(place)]

        monkeypatch.setattr(reach, "running_nodes", of_this_process)
        assert f"process {pid}, of example, runs in {home}" in within("status").stderr


def test_a_volunteer_of_this_home_is_not_elsewhere(
    within: Within, folder: Path, tmp_path: Path
) -> None:
    with running(folder, tmp_path / "home") as pid:
        done = within("status")
        assert f"process {pid} does not answer yet" in done.stderr
        assert "VOLUNTEER_HOME" not in done.stderr


@pytest.mark.parametrize("way", ["--headless", "--detach"])
def test_a_second_start_in_one_home_is_refused_before_anything_slow(
    within: Within, folder: Path, tmp_path: Path, way: str
) -> None:
    home = tmp_path / "home"
    invite = f"volunteer:{'ab' * 32}?peer=/ip4/127.0.0.1/tcp/1/p2p/" + (
        "12D3KooWQVJeEspFqUfxUYGgL7GTpevs1mT5aLgaFYv7TSjBuRer"
    )
    slow = {"trio", "libp2p", "torch"} - sys.modules.keys()
    with running(folder, home) as pid:
        done = within("join", "--swarm", invite, way, "--yes")
        assert done.returncode == 75
        assert f"process {pid} already runs with this identity" in done.stderr
        assert "volunteer attach" in done.stderr
        assert not slow & sys.modules.keys()
    assert not RunRecord(make_private(home_folders(home).data)).load().runs  # type: ignore[union-attr]


def test_that_refusal_takes_no_longer_than_any_command(
    volunteer: Volunteer, folder: Path, tmp_path: Path
) -> None:
    def seconds(*arguments: str) -> float:
        """Of the processor: how long a busy machine takes is another matter."""
        before = cpu_seconds()
        volunteer(*arguments)
        return cpu_seconds() - before

    invite = f"volunteer:{'ab' * 32}?peer=/ip4/127.0.0.1/tcp/1/p2p/" + (
        "12D3KooWQVJeEspFqUfxUYGgL7GTpevs1mT5aLgaFYv7TSjBuRer"
    )
    with running(folder, tmp_path / "home"):
        usual = min(seconds("version") for _ in range(2))
        refused = min(seconds("join", "--swarm", invite, "--headless") for _ in range(2))
    assert refused < 2 * usual + 0.5
