"""Threads follow who else computes on this machine, while stages are held."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import trio

from client.limits.cores import Cores, Quota
from client.limits.local_volunteers import Notice, Seen
from client.train.machine.core_sharing import CoreSharing
from protocol.effects import Explain

ME, OTHER = 1000, 1001


@dataclass
class Wall:
    """A notice board that a test writes on."""

    seen: list[Seen] = field(default_factory=list)
    posted: list[Notice] = field(default_factory=list)
    broken: bool = False
    up: bool = True

    def post(self, notice: Notice) -> None:
        if self.broken:
            raise OSError("read-only")
        self.posted.append(notice)

    def withdraw(self) -> None:
        self.up = False

    def others(self) -> list[Seen]:
        return self.seen


def _seen(pid: int, *, cpus: str = "ff", group: str = "", threads: int = 0, user: int = ME) -> Seen:
    return Seen(user, Notice(pid=pid, cpus=cpus, group=group, threads=threads, computing=True))


def _sharing(
    wall: Wall, *, chosen: int = 0, quota: Quota | None = None, said: list[Explain] | None = None
) -> CoreSharing:
    cores = Cores(frozenset(range(8)), 8, quota)
    explain = (said if said is not None else []).append
    return CoreSharing(chosen, explain, wall, lambda: cores, ME, lambda: 10)


def test_alone_it_takes_all_cores_and_says_what_it_does() -> None:
    wall = Wall()
    sharing = _sharing(wall)
    sharing.look(computing=False)
    assert sharing.threads == 8
    assert (wall.posted[0].cpus, wall.posted[0].computing) == ("ff", False)
    sharing.look(computing=True)
    sharing.look(computing=True)
    assert [notice.computing for notice in wall.posted] == [False, True], "told once each"


@pytest.mark.parametrize(
    ("seen", "threads"),
    [
        ([_seen(2)], 4),
        ([_seen(2), _seen(3), _seen(4)], 2),
        ([Seen(ME, Notice(pid=2, cpus="ff"))], 8),  # holds no stage
        ([_seen(2, cpus="ff00")], 8),  # on other cores
        ([_seen(2, threads=6)], 2),
        ([_seen(n, user=OTHER) for n in range(2, 200)], 4),
    ],
)
def test_it_shares_with_who_computes_on_the_same_cores(seen: list[Seen], threads: int) -> None:
    sharing = _sharing(Wall(seen))
    sharing.look(computing=True)
    assert sharing.threads == threads


def test_a_quota_is_shared_with_its_group_only() -> None:
    quota = Quota(4.0, "group")
    wall = Wall([_seen(2, group="group"), _seen(3, group="other")])
    sharing = _sharing(wall, quota=quota)
    sharing.look(computing=True)
    assert sharing.threads == 2
    assert wall.posted[0].group == "group"


def test_what_the_owner_chose_stays() -> None:
    wall = Wall([_seen(2)])
    sharing = _sharing(wall, chosen=3)
    sharing.look(computing=True)
    assert (sharing.threads, sharing.most_threads) == (3, 3)
    assert wall.posted[0].threads == 3, "the others leave these to us"


def test_without_a_place_for_notices_it_goes_on_with_what_it_sees() -> None:
    sharing = _sharing(Wall([_seen(2)], broken=True))
    sharing.look(computing=True)
    assert sharing.threads == 4


def test_memory_is_told_at_once_and_left_to_who_has_it() -> None:
    wall = Wall([Seen(ME, Notice(pid=2, cpus="ff", memory_bytes=60))])
    sharing = _sharing(wall)
    sharing.look(computing=True)
    assert sharing.memory_left(100) == 40
    sharing.hold_memory(30)
    assert (wall.posted[-1].memory_bytes, wall.posted[-1].computing) == (30, True)
    sharing.look(computing=True)
    assert len(wall.posted) == 2, "nothing has changed"
    wall.seen = []
    assert sharing.memory_left(100) == 100
    wall.seen = [Seen(OTHER, Notice(pid=2, cpus="ff", memory_bytes=2**50))]
    assert sharing.memory_left(100) == 40, "10 that are free, and the 30 that we have"


async def test_it_gives_way_and_takes_back_while_running(
    autojump_clock: trio.testing.MockClock,
) -> None:
    wall, said, told = Wall(), list[Explain](), list[int]()
    sharing = _sharing(wall, said=said)
    with trio.move_on_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sharing.run, lambda: True, told.append)
            await trio.sleep(3)
            wall.seen = [_seen(2)]
            await trio.sleep(3)
            wall.seen = []
            await trio.sleep(3)
            assert wall.up
            await trio.sleep_forever()
    assert told == [4, 8]
    assert "4 threads on 8 cores, shared by 2 volunteers" in said[0].words
    assert not wall.up, "its notice goes with it"
    told_before = len(wall.posted)
    sharing.hold_memory(0)
    assert len(wall.posted) == told_before, "and does not come back by the way"
    with trio.move_on_after(1):
        await sharing.run(lambda: False, told.append)
    assert len(wall.posted) > told_before, "but when it goes on"
