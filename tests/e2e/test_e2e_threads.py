"""Volunteers of one machine with real processes: they share its cores while they come and go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from client.cli.founding.options import RunChoices
from client.control.snapshot import LimitsView
from client.lab.local_swarm import LocalSwarm, Member
from client.limits.local_volunteers import Board
from tests.support.e2e_local import HOST, founded, wait_for

pytestmark = pytest.mark.long


@pytest.fixture
def swarm() -> Iterator[LocalSwarm]:
    yield from founded(
        RunChoices(name="cores", stages=1, steps=50_000, microbatches=4, measure=False)
    )


def _computing() -> dict[int, int]:
    """Threads chosen by their owners of all volunteers that compute here, by process."""
    seen = Board().others()
    return {each.notice.pid: each.notice.threads for each in seen if each.notice.computing}


def _limits(member: Member, computing: set[int]) -> LimitsView | None:
    """Its threads once the others compute and it holds a stage."""
    now = member.snapshot()
    if now is None or not now.seats or not computing <= _computing().keys():
        return None
    return now.limits


def test_a_volunteer_gives_cores_to_another_and_takes_them_back(swarm: LocalSwarm) -> None:
    """Others of this machine may run beside the test: no number of them is assumed."""
    flags = ("--listen-host", HOST)
    first = swarm.start("v1", flags)
    first.wait_until_it_answers(60.0)
    second = swarm.start("v2", flags)
    both = {first.process.pid, second.process.pid}

    def shared() -> bool | None:
        for member in (first, second):
            limits = _limits(member, both)
            if limits is None or limits.volunteers < 2:
                return None
            if limits.threads_now > max(1, limits.cores // 2):
                return None
        return True

    wait_for(shared, "both have given way", [first, second])
    second.kill()
    wait_for(lambda: True if second.process.pid not in _computing() else None, "it is gone")

    def taken_back() -> bool | None:
        beside = _computing().keys() - {first.process.pid}
        limits = _limits(first, {first.process.pid})
        if limits is None or limits.volunteers != 1 + len(beside):
            return None
        return True if beside or limits.threads_now == limits.cores else None

    wait_for(taken_back, "the first one has taken them back", [first])
