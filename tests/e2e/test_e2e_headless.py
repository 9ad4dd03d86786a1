"""A service with real processes: ready, watched, measured, its log readable, and a clean end."""

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from client.cli.founding.options import RunChoices
from client.cli.reach.home import free_port
from client.cli.serving.metrics import METRICS
from client.errors import ExitCode
from client.lab.local_swarm import environment
from tests.support.cli_process import REPOSITORY
from tests.support.e2e_local import HOST, JOIN, found, snapshot_of, wait_for

pytestmark = pytest.mark.slow


class Manager:
    """The end of the socket that systemd reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self._heard: list[str] = []

    def heard(self, start: str) -> int | None:
        """Return how often something was said so far; None: never."""
        with suppress(BlockingIOError):
            while True:
                self._heard.append(self._socket.recv(4096).decode())
        return sum(line.startswith(start) for line in self._heard) or None

    def close(self) -> None:
        self._socket.close()


def _scrape(port: int) -> str | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return None


def _trained(folder: Path) -> int | None:
    """Return the step of the running volunteer, once it has closed one."""
    now = snapshot_of(folder / "v1")
    return now.step if now is not None and now.step else None


def test_a_service_is_ready_alive_measured_and_stops(folder: Path) -> None:
    run = RunChoices(
        name="service", stages=1, steps=5000, sequences=2, microbatches=4, measure=False
    )
    found(folder, "v1", run)
    manager, port = Manager(folder / "notify"), free_port(HOST)
    variables = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "2000000"}
    with (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "client.cli.main", *JOIN, str(folder / "x.swarm")),
                *("--log-format", "json", "--metrics-port", str(port)),
            ],
            env={**environment(folder / "v1"), **variables},
            stderr=stderr,
            cwd=REPOSITORY,
        )
    try:
        wait_for(lambda: manager.heard("READY=1"), "it is ready")
        wait_for(lambda: manager.heard("STATUS=step "), "it says how far it is")
        fed = manager.heard("WATCHDOG=1") or 0
        wait_for(lambda: (manager.heard("WATCHDOG=1") or 0) > fed + 2 or None, "the loop turns")
        text = wait_for(lambda: _scrape(port), "it is measured")
        assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} == set(
            METRICS
        )
        assert 'volunteer_state{state="' in text
        step = wait_for(lambda: _trained(folder), "it reports a step")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == ExitCode.OK
        assert manager.heard("STOPPING=1") == 1
    finally:
        process.kill()
        process.wait(10)
        manager.close()
    lines = [json.loads(line) for line in (folder / "stderr").read_text().splitlines()]
    steps = [line["data"] for line in lines if line["kind"] == "StepCommitted"]
    assert [one["step"] for one in steps] == list(range(len(steps)))
    assert len(steps) >= step
    assert all(one["loss"] for one in steps)
    assert any("stopping" in line["words"] for line in lines)
    assert all({"time", "level", "kind", "words"} <= line.keys() for line in lines)
