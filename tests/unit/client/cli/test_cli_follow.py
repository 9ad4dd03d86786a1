"""Commands that go on: each line comes when it is there, and the end of the node ends them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from client.cli.logging.log_file import LogFile
from client.cli.logging.log_writer import as_json
from client.events import LogLine
from client.store.paths import home_folders
from tests.support.cli_process import REPOSITORY
from tests.support.control_fakes import FakeProvider
from tests.support.nodes import node_of


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vol") as name:  # a socket's path must be short
        yield Path(name)


@contextmanager
def running(home: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "client.cli.main", *arguments],
        env={**os.environ, "VOLUNTEER_HOME": str(home)},
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def _line(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    found: dict[str, object] = json.loads(process.stdout.readline())
    return found


def test_the_log_is_followed_through_a_change_of_the_file(home: Path) -> None:
    log = LogFile(home_folders(home).logs, max_bytes=400)
    log.write(as_json(LogLine(words="first"), time.time()))
    with running(home, "logs", "-f", "--json") as process:
        assert _line(process)["words"] == "first"
        for number in range(8):
            log.write(as_json(LogLine(words=f"line {number}"), time.time()))
            assert _line(process)["words"] == f"line {number}"
    log.close()


def test_watching_plainly_prints_a_line_per_change(home: Path) -> None:
    with node_of(home, FakeProvider()), running(home, "status", "--watch", "--plain") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("step 3/10")
