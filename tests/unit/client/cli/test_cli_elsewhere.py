"""Where none runs a user is told how to find one; a second start in a home is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from client.store.last_run import RunRecord
from client.store.paths import home_folders, make_private
from tests.support.cli_process import Within

NODE = """
import sys
from client.store.last_run import RunRecord
from client.store.paths import find_folders, make_private
RunRecord(make_private(find_folders().data)).begin("ab" * 32, "my-swarm")
print("up", flush=True)
sys.stdin.readline()
"""


@contextmanager
def running(home: Path) -> Iterator[int]:
    """A process that is the node of a home; yields its id."""
    home.mkdir(mode=0o700, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", NODE],
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


def test_where_none_runs_it_says_how_to_start_one_and_where_others_are(within: Within) -> None:
    done = within("status")
    assert done.returncode == 3
    assert done.stderr.startswith("volunteer: no volunteer runs here\n  start one: volunteer join")
    assert "volunteer list" in done.stderr


def test_one_that_starts_does_not_answer_yet(within: Within, tmp_path: Path) -> None:
    with running(tmp_path / "home") as pid:
        done = within("status")
        assert f"process {pid} does not answer yet" in done.stderr


@pytest.mark.parametrize("way", ["--headless", "--detach"])
def test_a_second_start_in_one_home_is_refused_before_anything_slow(
    within: Within, tmp_path: Path, way: str
) -> None:
    home = tmp_path / "home"
    invite = f"volunteer:{'ab' * 32}?peer=/ip4/127.0.0.1/tcp/1/p2p/" + (
        "12D3KooWQVJeEspFqUfxUYGgL7GTpevs1mT5aLgaFYv7TSjBuRer"
    )
    slow = {"trio", "libp2p", "torch"} - sys.modules.keys()
    with running(home) as pid:
        done = within("join", "--swarm", invite, way, "--yes")
        assert done.returncode == 75
        assert f"process {pid} already runs with this identity" in done.stderr
        assert "volunteer attach" in done.stderr
        assert not slow & sys.modules.keys()
    assert not RunRecord(make_private(home_folders(home).data)).load().runs  # type: ignore[union-attr]
