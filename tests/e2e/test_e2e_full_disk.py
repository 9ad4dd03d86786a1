"""A real volunteer whose disk is full when it is to leave: it says what is lost by that."""

import os
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from client.cli.founding.options import RunChoices
from client.control.snapshot import Snapshot
from client.errors import ExitCode
from client.lab.local_swarm import LocalSwarm, Member
from client.store.last_run import RunRecord
from client.store.paths import home_folders
from tests.support.e2e_local import HOST, beyond, founded, volunteer, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk"),
]
FLAGS = ("--listen-host", HOST, "--threads", "1", "--seats", "1")
MOUNT = 'mkdir -p {0} && mount -t tmpfs -o size=4m,nr_inodes=64,mode=700 none {0} && exec "$0" "$@"'
SELDOM = 100_000
"""Steps between two checkpoints."""


def _swarm(steps: int) -> Iterator[LocalSwarm]:
    if subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("no namespaces here")
    yield from founded(
        RunChoices(
            name="full",
            stages=1,
            steps=steps,
            sequences=2,
            microbatches=4,
            checkpoint_every=SELDOM,
            measure=False,
        )
    )


@pytest.fixture
def endless() -> Iterator[LocalSwarm]:
    yield from _swarm(SELDOM)


@pytest.fixture
def short() -> Iterator[LocalSwarm]:
    yield from _swarm(100)


class Disk:
    """The small disk of a volunteer's checkpoints, which only that volunteer sees."""

    def __init__(self, swarm: LocalSwarm, *flags: str) -> None:
        checkpoints = home_folders(swarm._homes / "v1").data / "checkpoints"
        within = ("unshare", "-m", "sh", "-c", MOUNT.format(checkpoints))
        self.member = swarm.start("v1", (*FLAGS, *flags), within=within)
        swarm.wait("an answer", self.member.snapshot, 60.0)
        self._folder = Path(f"/proc/{self.member.process.pid}/root{checkpoints}")

    def fill(self) -> None:
        with (self._folder / "fill").open("wb", buffering=0) as file:
            _until_full(lambda _: file.write(bytes(4096)))

    def clear(self) -> None:
        (self._folder / "fill").unlink()

    def take_all_names(self) -> None:
        """No file can be made any more, though there is room."""
        _until_full(lambda number: (self._folder / f"name-{number}").touch())


def _until_full(write: Callable[[int], object]) -> None:
    with pytest.raises(OSError, match="No space left"):
        deque(map(write, count()), maxlen=0)


def _ended(member: Member) -> None:
    """It has ended and says what was lost."""
    assert member.process.wait(60) == ExitCode.RUNTIME
    assert "could not be saved" in member.log_tail(20)
    run = RunRecord(home_folders(member.home).data).load()
    assert run is not None
    assert "of stage 0 could not be saved: " in run.reason
    assert run.exit_code == ExitCode.RUNTIME


def test_who_asks_is_refused_and_a_signal_ends_it_with_what_is_lost(endless: LocalSwarm) -> None:
    disk = Disk(endless)
    member = disk.member
    wait_for(lambda: beyond(member, 2), "it trains", [member])
    disk.fill()
    at = wait_for(lambda: beyond(member, 32), "it trains on", [member]).step
    for command in ("finish", "pause"):
        refused = volunteer(member.home, command)
        assert refused.returncode == ExitCode.RUNTIME, command
        assert "of stage 0, which nobody else has" in refused.stderr
        assert "--discard leaves anyway" in refused.stderr
    wait_for(lambda: beyond(member, at + 20), "it still trains", [member])

    disk.clear()
    disk.take_all_names()
    assert volunteer(member.home, "finish", "--wait-s", "0").returncode == ExitCode.OK
    wait_for(lambda: _stays(member), "it waits for room", [member])
    member.ask_to_stop()
    _ended(member)


def _stays(member: Member) -> Snapshot | None:
    now = member.snapshot()
    return now if now is not None and "stays in memory" in now.last_error else None


def test_the_end_of_the_run_says_what_is_lost(short: LocalSwarm) -> None:
    disk = Disk(short, "--exit-when-done")
    wait_for(lambda: beyond(disk.member, 2), "it trains", [disk.member])
    disk.fill()
    _ended(disk.member)
