"""A volunteer on two hosts of a job: it trains, outlives a host, and leaves when either is told."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.cli.founding.options import RunChoices
from client.cli.reach.home import free_port
from client.control.snapshot import Snapshot
from client.errors import ExitCode
from client.lab.local_swarm import LocalSwarm, environment
from tests.support.e2e_local import (
    HOST,
    REPOSITORY,
    beyond,
    founded,
    in_state,
    volunteer,
    wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.long]
FLAGS = ("--listen-host", HOST, "--threads", "1", "--devices", "cpu", "--hosts", "2")


@pytest.fixture
def swarm() -> Iterator[LocalSwarm]:
    yield from founded(
        RunChoices(
            name="hosts",
            stages=1,
            steps=50_000,
            sequences=2,
            microbatches=8,
            measure=False,
            boundary_codec="fp32",
            averaging_codec="fp32",
            dual_homing=0,
        )
    )


class Follower:
    """Another host, with a home of its own."""

    def __init__(self, home: Path, flags: tuple[str, ...]) -> None:
        self.name, self.home = home.name, home
        home.mkdir(exist_ok=True)
        self.log = home / "log"
        command = [sys.executable, "-m", "client.cli.main", "join", "--headless", *flags]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment(home), cwd=REPOSITORY, stdout=log, stderr=log
            )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self.log.read_text().splitlines()[-lines:])


def test_two_hosts_are_one_volunteer_that_outlives_one_and_leaves_with_it(
    swarm: LocalSwarm, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("5a" * 32)
    key.chmod(0o600)
    place = f"{HOST}:{free_port(HOST)}"
    flags = (*FLAGS, "--hosts-address", place, "--hosts-key-file", str(key))
    other = Follower(tmp_path / "h2", (*flags, "--host-index", "1"))
    try:
        first = swarm.start("v1", (*flags, "--host-index", "0"))
        first.wait_until_it_answers(120.0)
        now = in_state(first, [first, other], "training", step=1)
        assert [rank.device for rank in now.worker.ranks] == ["cpu", "cpu"]
        assert all(rank.host for rank in now.worker.ranks)

        def both() -> Snapshot | None:
            seen = first.snapshot()
            ranks = seen.worker.ranks if seen is not None else []
            return seen if ranks and all(rank.passes for rank in ranks) else None

        wait_for(both, "both compute", [first, other])
        assert (
            f"devices   {now.worker.ranks[0].host} cpu " in volunteer(first.home, "status").stdout
        )

        other.process.kill()
        other.process.wait()
        other = Follower(tmp_path / "h2", (*flags, "--host-index", "1"))

        def again() -> Snapshot | None:
            after = first.snapshot()
            back = after is not None and after.worker.restarts and after.worker.ranks
            return after if back else None

        after = wait_for(again, "a new group", [first, other])
        wait_for(lambda: beyond(first, after.step + 1), "it goes on", [first, other])

        other.process.send_signal(signal.SIGTERM)
        assert first.process.wait(240) == ExitCode.TEMPORARY, first.log_tail()
        assert other.process.wait(60) == ExitCode.TEMPORARY, other.log_tail()
        assert "was told to end, so this volunteer leaves" in first.log.read_text()
    finally:
        other.process.kill()
