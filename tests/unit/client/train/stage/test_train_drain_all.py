"""Leaving in order: nobody has anything to recover, and the last state lies on the disk."""

import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pytest
import trio

from client.compute import saving
from client.compute.checkpoint import examine
from client.train.recovery.buddies import Buddies
from client.train.stage.held_stages import FINISH_S
from client.train.stage.saver import StateSaver
from protocol.recovery.stored import Copy, Lineage, Stored
from tests.support.full_disk import full
from tests.support.train_swarm import Volunteer, open_swarm


async def finish(volunteer: Volunteer) -> None:
    """As a node does, short of its goodbye."""
    engine, held_stages = volunteer.engine, volunteer.held_stages
    engine.history.end()
    held_stages.save_when_drained()
    engine.drain()
    await held_stages.give_up_all()


def newest(volunteer: Volunteer, stage: int) -> int:
    """The newest sound checkpoint of a stage on a volunteer's disk."""
    found = [examine(path)[0] for path in volunteer.disk.glob(f"stage-{stage}-v*.safetensors")]
    return max((info.version for info in found), default=-1)


async def test_one_of_two_leaves_and_the_others_recover_nothing(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=14) as swarm:
        first, second, *_ = await swarm.staffed(0, 0, 1, 1, steps=3)
        await finish(second)
        at = newest(second, 0)
        assert at >= 3
        assert not second.held_stages.held
        await swarm.until_done()
        swarm.assert_exact()
        assert sum(v.held_stages.counting.seen.lost_microbatches for v in swarm.volunteers) == 0
        assert sum(v.held_stages.counting.seen.rerouted_microbatches for v in swarm.volunteers) == 0
        commits = [c for c in first.engine.commits if c.version == at]
        assert [c.hash for c in commits] == [
            examine(second.disk / f"stage-0-v{at}.safetensors")[0].hash
        ]


async def test_the_status_says_what_a_stage_waits_for_on_its_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = StateSaver.final

    async def on_a_slow_disk(saver: StateSaver) -> None:
        await trio.sleep(1.0)
        await final(saver)

    monkeypatch.setattr(StateSaver, "final", on_a_slow_disk)
    async with open_swarm(tmp_path, steps=200) as swarm:
        first, second, *_ = await swarm.staffed(0, 0, 1, 1, steps=3)
        said = set[tuple[str, str]]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(finish, second)
            while second.held_stages.held or not said:
                await trio.sleep(0.005)
                now = second.shown(stopping=True)
                said |= {(seat.waits_for, now.reason) for seat in now.seats}
        assert ("draining stage 0: its running step is brought to its end",) * 2 in said
        assert ("saving stage 0: writing a last checkpoint",) * 2 in said
        serving = first.shown().seats
        assert [(seat.state, seat.waits_for) for seat in serving] == [("serving", "")]


async def test_all_leave_together_at_one_version(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=200) as swarm:
        volunteers = await swarm.staffed(0, 0, 1, 1, steps=3)
        async with trio.open_nursery() as nursery:
            for volunteer in volunteers:
                nursery.start_soon(finish, volunteer)
        left = [newest(v, stage) for v, stage in zip(volunteers, (0, 0, 1, 1), strict=True)]
        assert len(set(left)) == 1, left
        assert left[0] >= 3


async def test_the_last_replica_leaves_its_state_and_the_run_goes_on_there(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=12) as swarm, trio.open_nursery() as nursery:
        first, last = await swarm.add(0), await swarm.add(1)
        for volunteer in (first, last):
            nursery.start_soon(keeper(volunteer).run)
        await swarm.until(lambda: last.step(1) >= 3)
        await finish(last)
        at = newest(last, 1)
        assert at >= 3
        assert newest(first, 1) == at, "its buddy has a copy"
        assert newest(first, 0) == at, "the other stage saved as well"
        swarm.vanish(last)
        after = await swarm.add(1)
        await swarm.until(lambda: after.serves(1))
        assert after.lineage.version == at, "no step is done twice"
        await swarm.until_done()
        nursery.cancel_scope.cancel()
        swarm.assert_exact()


def keeper(volunteer: Volunteer) -> Buddies:
    """The buddies of a volunteer, as a node has them."""
    buddies = volunteer.held_stages.buddies
    del buddies.hand_over  # that of the test swarm
    return buddies


async def test_in_a_swarm_that_stands_still_nothing_is_waited_for(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=200) as swarm:
        first, last = await swarm.staffed(0, 1, steps=3)
        swarm.vanish(last)
        await swarm.until(lambda: 1 in first.held_stages.view.empty_stages())
        began = trio.current_time()
        await finish(first)
        assert trio.current_time() - began < 30
        assert newest(first, 0) >= 3


class Disk:
    """A disk that takes no checkpoints while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self._replacing = saving.replacing
        monkeypatch.setattr(saving, "replacing", self._replaced)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(0 if self.full else 2**40))

    def _replaced(self, path: Path, **more: Any) -> AbstractContextManager[BinaryIO]:
        if self.full:
            full()
        return self._replacing(path, **more)


class Usage(NamedTuple):
    free: int


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


async def test_what_nobody_else_has_stays_in_memory_until_the_disk_takes_it(
    tmp_path: Path, disk: Disk
) -> None:
    async with open_swarm(tmp_path, stages=1, steps=200) as swarm, trio.open_nursery() as nursery:
        (alone,) = await swarm.staffed(0, steps=3)
        disk.full = True
        nursery.start_soon(finish, alone)
        await swarm.until(lambda: alone.held_stages.keeps)
        await trio.sleep(2 * FINISH_S)
        now = alone.shown(stopping=True)
        assert "No space left on device" in now.reason
        assert "--discard" in now.reason
        assert "stage 0 stays in memory" in now.last_error
        words = [event.words for event in alone.events]
        assert sum("stays in memory" in one for one in words) == 1, "it is said once"
        at = alone.step(0)
        disk.full = False
        await swarm.until(lambda: not alone.held_stages.held)
        assert newest(alone, 0) == at
        assert alone.held_stages.lost == []


async def test_what_is_given_up_unsaved_is_told(tmp_path: Path, disk: Disk) -> None:
    async with open_swarm(tmp_path, stages=1, steps=200) as swarm:
        (alone,) = await swarm.staffed(0, steps=3)
        disk.full = True
        alone.held_stages.let_go.set()
        await finish(alone)
        assert not alone.held_stages.held
        (said,) = alone.held_stages.lost
        assert said.startswith("version ")
        assert "of stage 0 could not be saved" in said
        assert "No space left on device" in said


async def test_what_others_have_is_not_lost_on_a_full_disk(tmp_path: Path, disk: Disk) -> None:
    async with open_swarm(tmp_path, stages=1, steps=200) as swarm:
        _, leaver = await swarm.staffed(0, 0, steps=3)
        disk.full = True
        assert leaver.held_stages.not_to_be_saved() == ""
        await finish(leaver)
        assert newest(leaver, 0) == -1
        assert leaver.held_stages.lost == []
        words = [event.words for event in leaver.events]
        assert any("others have it, so nothing is lost" in one for one in words), words


async def test_it_is_known_before_that_the_disk_will_not_take_the_last_version(
    tmp_path: Path, disk: Disk
) -> None:
    async with open_swarm(tmp_path, stages=1, steps=200) as swarm:
        alone = await swarm.add(0)
        disk.full = True
        assert alone.held_stages.not_to_be_saved() == "", "it has nothing yet"
        await swarm.until(lambda: alone.step(0) >= 3)
        said = alone.held_stages.not_to_be_saved()
        assert said.startswith(f"cannot save version {alone.step(0)} of stage 0")
        assert "0.0 MB free" in said
        disk.full = False
        assert alone.held_stages.not_to_be_saved() == ""


async def test_a_copy_counts_that_is_of_our_lineage_and_of_our_state(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, stages=1, steps=200) as swarm:
        (alone,) = await swarm.staffed(0, steps=3)
        at, history = alone.step(0), alone.engine.history
        made = bytes.fromhex(next(c.hash for c in alone.engine.commits if c.version == at))
        ours, other = history.lineage, Lineage(1 << 32, 1, (bytes(32),), ("x",))
        for lineage, copy, kept in (
            (ours, Copy(0, at, made), True),
            (ours, Copy(0, at, bytes(32)), False),
            (ours, Copy(0, at - 1, bytes(32)), False),
            (other, Copy(0, at, made), False),
        ):
            history.machine.known.stored[alone.engine.signer.peer] = Stored(lineage, (copy,))
            assert history.is_kept(0, at) == kept
            assert (alone.held(0).at_stake() is None) == kept
