"""Pausing with real processes: the worker goes, others go on; on resuming it serves again."""

import signal
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest

from client.cli.founding.options import RunChoices
from client.control.client import ControlClient, running_nodes
from client.control.snapshot import Snapshot
from client.errors import ExitCode
from client.lab.local_swarm import LocalSwarm, Member
from client.store.paths import runtime_folder
from tests.support.e2e_local import HOST, beyond, founded, wait_for

pytestmark = pytest.mark.slow
FLAGS = ("--listen-host", HOST, "--threads", "1", "--seats", "1")


@pytest.fixture
def swarm() -> Iterator[LocalSwarm]:
    yield from founded(
        RunChoices(name="pause", stages=1, steps=5000, sequences=2, microbatches=4, measure=False)
    )


def _control(member: Member) -> ControlClient:
    ((path, _),) = running_nodes(runtime_folder(member.home))
    return ControlClient(path)


def _both_serve(members: list[Member], beyond: int) -> list[Snapshot] | None:
    now = [one for member in members if (one := member.snapshot()) is not None]
    if len(now) < len(members) or min(one.step for one in now) <= beyond:
        return None
    serving = Counter(seat.stage for one in now for seat in one.seats if seat.state == "serving")
    return now if serving == {0: len(members)} else None


def _paused(member: Member) -> Snapshot | None:
    """It says so, holds nothing, and has no process beside it."""
    now = member.snapshot()
    if now is None or now.state != "paused" or now.workers:
        return None
    return None if psutil.Process(now.pid).children(recursive=True) else now


def _whole_rss(pid: int) -> int:
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(process.memory_info().rss for process in processes)


def test_a_paused_volunteer_frees_its_memory_and_comes_back(swarm: LocalSwarm) -> None:
    members = [swarm.start("v1", FLAGS)]
    swarm.wait("an answer", members[0].snapshot, 60.0)
    members.append(swarm.start("v2", FLAGS))
    pauser = members[1]
    before = wait_for(lambda: _both_serve(members, 2), "both train", members)
    pid = before[1].pid
    used = _whole_rss(pid)

    with _control(pauser) as control:
        control.pause(reason="a film")
    paused = wait_for(lambda: _paused(pauser), "it is paused", members)
    assert paused.reason == "a film"
    assert paused.seats == []
    assert len(paused.peers) == 1, "it stays connected"
    assert _whole_rss(pid) < used / 2

    at = paused.step
    for member in members:  # one trains on, the other looks on
        wait_for(lambda m=member: beyond(m, at + 5), "the run goes on", members)

    assert pauser.process.send_signal(signal.SIGINT) is None
    assert pauser.process.wait(60) == ExitCode.OK
    members[1] = pauser = swarm.start("v2", FLAGS)  # a pause outlives the process
    again = wait_for(lambda: _paused(pauser), "it is still paused", members)
    assert again.reason == "a film"

    with _control(pauser) as control:
        assert control.resume()
    after = wait_for(lambda: _both_serve(members, again.step + 3), "both train again", members)
    assert after[1].paused is None
    assert sum(one.counters.doubled_microbatches for one in after) == 0
    with _control(pauser) as control:  # and once more within the same process
        control.pause()
        wait_for(lambda: _paused(pauser), "it is paused again", members)
        control.resume()
    wait_for(lambda: _both_serve(members, after[0].step + 3), "both train once more", members)
