"""Volunteers with several devices as processes: what is told, shown, computed and left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from client.cli.founding.options import RunChoices
from client.control.snapshot import Snapshot
from client.errors import ExitCode
from client.lab.local_swarm import LocalSwarm
from tests.support.e2e_local import HOST, beyond, founded, in_state, volunteer, wait_for

pytestmark = pytest.mark.long
FLAGS = ("--listen-host", HOST, "--threads", "2")
ON_TWO = (*FLAGS, "--devices", "cpu:0,cpu:1")


@pytest.fixture
def swarm() -> Iterator[LocalSwarm]:
    yield from founded(
        RunChoices(
            name="devices",
            stages=2,
            steps=50_000,
            sequences=2,
            microbatches=8,
            measure=False,
            boundary_codec="fp32",
            averaging_codec="fp32",
            dual_homing=False,
        )
    )


def test_two_devices_are_one_volunteer_that_outlives_a_rank(swarm: LocalSwarm) -> None:
    first = swarm.start("v1", ON_TWO)
    first.wait_until_it_answers(120.0)
    members = [first, swarm.start("v2", FLAGS)]
    now = in_state(first, members, "training", step=1)
    assert now.limits.device == "cpu:0,cpu:1"
    pids = [rank.pid for rank in now.workers[0].ranks]
    assert [rank.device for rank in now.workers[0].ranks] == ["cpu:0", "cpu:1"]
    assert now.workers[0].pid == pids[0]
    assert "devices   cpu:0 " in volunteer(first.home, "status").stdout

    os.kill(pids[1], signal.SIGKILL)

    def again() -> Snapshot | None:
        after = first.snapshot()
        back = after is not None and after.workers[0].restarts and after.workers[0].ranks
        return after if back and first.alive else None

    after = wait_for(again, "a new group", members)
    assert after.workers[0].restarts == 1
    wait_for(lambda: beyond(first, after.step + 1), "it goes on", members)
    ending = [process.pid for process in psutil.Process(first.process.pid).children()]
    assert not set(pids) & set(ending)
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(240) == ExitCode.OK
    assert not any(map(psutil.pid_exists, ending))
