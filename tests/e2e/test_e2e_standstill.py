"""Two volunteers hold both stages of a run, and their workers stand still for some seconds.

That happens where a machine swaps, a graph is compiled, or a lid closes for a moment. One of the
two is set aside, and the other goes on alone with both stages. Before it was set aside in all its
stages, the run stood until "beginning anew", a minute and more later, with steps made again.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence

import psutil
import pytest

from client.cli.founding.options import ModelChoices, RunChoices
from client.lab.local_swarm import LocalSwarm, Member
from protocol.ids import PeerId, rank
from tests.support.e2e_local import HOST, beyond, founded, wait_for

pytestmark = pytest.mark.long
FLAGS = ("--listen-host", HOST, "--threads", "1", "--seats", "2")
STOPS_S = ((0.0, 3.0), (0.0, 15.0))
"""From when to when the workers stand still: first of the one that can close a step alone, by its
rank, and then waits for the other one's."""


@pytest.fixture
def swarm() -> Iterator[LocalSwarm]:
    yield from founded(
        RunChoices(
            name="still", stages=2, steps=100_000, sequences=8, microbatches=16, measure=False
        ),
        ModelChoices(layers=4, width=96, heads=4, context=64),
    )


def _both_hold_both(members: Sequence[Member]) -> bool | None:
    for member in members:
        now = member.snapshot()
        if now is None or [seat.state for seat in now.seats] != ["serving", "serving"]:
            return None
    return True


def _peer(member: Member) -> PeerId:
    now = member.snapshot()
    assert now is not None
    return PeerId(now.peer)


def _workers(member: Member) -> list[psutil.Process]:
    children = psutil.Process(member.process.pid).children(recursive=True)
    return [child for child in children if "client.compute.worker" in child.cmdline()]


def _stand_still(members: Sequence[Member]) -> None:
    """Stop all workers and let them go on, each volunteer's in its own time."""
    signals = [
        (at, what, worker)
        for member, (begin, end) in zip(members, STOPS_S, strict=True)
        for worker in _workers(member)
        for at, what in ((begin, signal.SIGSTOP), (end, signal.SIGCONT))
    ]
    began = time.monotonic()
    for at, what, worker in sorted(signals, key=lambda one: one[0]):
        time.sleep(max(0.0, began + at - time.monotonic()))
        worker.send_signal(what)


def test_workers_that_stand_still_cost_no_step(swarm: LocalSwarm) -> None:
    members = [swarm.start("v1", FLAGS)]
    members[0].wait_until_it_answers(60.0)
    members.append(swarm.start("v2", FLAGS))
    wait_for(lambda: _both_hold_both(members), "both hold both stages", members)
    newest = wait_for(lambda: beyond(members[0], 20), "20 steps", members).step
    _stand_still(sorted(members, key=lambda member: rank("elector", _peer(member))))
    wait_for(lambda: beyond(members[0], newest + 60), "the run goes on", members)
    for member in members:
        assert "beginning anew" not in member.log.read_text(), member.log_tail(30)
