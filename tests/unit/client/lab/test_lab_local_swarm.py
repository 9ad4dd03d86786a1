"""Volunteers as child processes: watched, killed with their workers, always reaped."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from client.errors import UserError
from client.lab import local_swarm
from client.lab.local_swarm import LocalSwarm, Member, terminate_as_interrupt

REPOSITORY = Path(__file__).parents[4]
FAKE = REPOSITORY / "tests" / "support" / "fake_volunteer.py"
DEADLINE_S = 30.0


@pytest.fixture
def swarm(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalSwarm]:
    monkeypatch.setattr(local_swarm, "volunteer_command", lambda: [sys.executable, str(FAKE)])
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    with tempfile.TemporaryDirectory(prefix="vol") as folder:
        homes = Path(folder)
        with LocalSwarm(homes / "x.swarm", homes, homes / "logs") as found:
            yield found


def _start(swarm: LocalSwarm, count: int = 1) -> list[Member]:
    members = [swarm.start(f"volunteer-{number}") for number in range(1, count + 1)]
    for member in members:
        swarm.wait("an answer", member.snapshot, DEADLINE_S)
    return members


def _worker(member: Member) -> int:
    return int((member.home / "worker.pid").read_text())


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.01)


def test_a_kill_takes_the_worker_along_and_spares_the_others(swarm: LocalSwarm) -> None:
    first, second = _start(swarm, 2)
    worker = _worker(first)
    before = time.time()
    assert before <= first.kill() <= time.time()
    _wait_until_gone(worker)
    assert not first.alive
    assert first.snapshot() is None
    assert second.snapshot() is not None


@pytest.mark.parametrize(("mode", "code"), [("", 0), ("stubborn", -signal.SIGKILL)])
def test_leaving_stops_all_with_their_workers(
    swarm: LocalSwarm, monkeypatch: pytest.MonkeyPatch, mode: str, code: int
) -> None:
    monkeypatch.setenv("FAKE_MODE", mode)
    if mode:
        monkeypatch.setattr(local_swarm, "STOP_TIMEOUT_S", 0.3)
    members = _start(swarm, 2)
    swarm.stop()
    assert [member.process.returncode for member in members] == [code, code]
    for member in members:
        _wait_until_gone(_worker(member))


def test_who_needs_no_orderly_end_is_killed(swarm: LocalSwarm) -> None:
    homes = swarm._homes
    with LocalSwarm(homes / "x.swarm", homes, homes / "logs", orderly=False) as other:
        (member,) = _start(other)
    assert member.process.returncode == -signal.SIGKILL
    _wait_until_gone(_worker(member))


def test_what_does_not_happen_in_time_is_an_error_and_who_was_killed_is_none(
    swarm: LocalSwarm,
) -> None:
    (member,) = _start(swarm)
    member.kill()
    swarm.wait("at once", lambda: True, 0.0)
    with pytest.raises(UserError, match=r"never: not within 0 s\nvolunteer-1:"):
        swarm.wait("never", lambda: False, 0.0)


def test_one_that_fails_to_start_is_explained_by_its_log(
    swarm: LocalSwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MODE", "failing")
    with pytest.raises(UserError, match="fails as told"):
        _start(swarm)


def test_settings_of_the_user_do_not_reach_the_volunteers(
    swarm: LocalSwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOLUNTEER_THREADS", "7")
    (member,) = _start(swarm)
    seen = psutil.Process(member.process.pid).environ()
    assert {key for key in seen if key.startswith("VOLUNTEER_")} == {"VOLUNTEER_HOME"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_block_as_ctrl_c_does(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), number))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt), terminate_as_interrupt():
            signal.pause()
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_one_that_is_starting_when_a_signal_comes_is_stopped_too(
    swarm: LocalSwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def started_then_interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*arguments, **options))
        signal.raise_signal(signal.SIGTERM)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", started_then_interrupted)
    with pytest.raises(KeyboardInterrupt), terminate_as_interrupt(), swarm:
        swarm.start("volunteer-1")
    assert [process.poll() is not None for process in started] == [True]


def test_under_nohup_a_closed_terminal_ends_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminate_as_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_volunteer_that_ends_by_itself_is_noticed(swarm: LocalSwarm) -> None:
    first, _ = _start(swarm, 2)
    first.process.kill()
    first.process.wait()
    with pytest.raises(UserError, match="volunteer-1 ended with -9"):
        swarm.wait("done", lambda: False, DEADLINE_S)
