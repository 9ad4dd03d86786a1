"""Copies of a neighbour's checkpoints: fetched, verified, bounded, handed over before leaving."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio

from client.compute.checkpoint import verify
from client.train.recovery import buddies, copies
from client.train.transfer.blobs import Download
from client.train.transfer.inventory import checked, stored_states
from protocol.recovery.stored import Copy, Lineage
from protocol.transfer.blob import Blob
from protocol.view import Replica, SwarmView
from protocol.wire.messages import BlobOffer
from tests.support.buddies_world import (
    EVERY,
    STAGES,
    SWARM,
    A,
    B,
    C,
    Member,
    World,
    checkpoint,
    open_world,
)


@pytest.fixture
async def world(tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> World:
    return open_world(tmp_path, nursery, monkeypatch)


async def test_the_buddy_keeps_every_checkpoint_and_bounds_its_disk(
    world: World, nursery: trio.Nursery
) -> None:
    holder, keeper = world.members[A], world.members[B]
    nursery.start_soon(keeper.buddies.run)
    for number in range(1, 5):
        world.serve(number * EVERY + 1, "a", "b")
        await holder.store((0, number * EVERY))
        await world.until(lambda v=number * EVERY: keeper.shelf.offer(0, v))
    assert [(c.stage, c.version) for c in keeper.folder.entries()] == [
        (0, 3 * EVERY),
        (0, 4 * EVERY),
    ]
    assert keeper.shelf.offer(0, EVERY) is None
    assert keeper.shelf.offer(0, 4 * EVERY) == holder.shelf.offer(0, 4 * EVERY)
    assert checked(verify(keeper.folder.path(0, 4 * EVERY)), SWARM, STAGES).version == 4 * EVERY
    assert keeper.history.told == [(0, EVERY * n) for n in range(1, 5)]
    assert not holder.blamed
    assert not keeper.blamed
    assert {path.name for path in keeper.folder.folder.iterdir()} == {
        c.path.name for c in keeper.folder.entries()
    }


async def test_who_is_not_the_buddy_keeps_nothing(world: World, nursery: trio.Nursery) -> None:
    world.serve(EVERY, "ab", "c")
    for member in world.members.values():
        nursery.start_soon(member.buddies.run)
    await world.members[A].store((0, EVERY))
    await world.members[B].store((0, EVERY))
    await world.until(lambda: world.members[C].has(0, EVERY))
    await trio.sleep(60)
    assert not world.members[C].has(1, EVERY)
    assert not world.members[A].has(1, EVERY), "nobody has that to give"


@pytest.mark.parametrize("how", [{"swarm": "cd" * 32}, {"fill": 1}])
async def test_what_is_not_the_swarms_state_is_not_kept(
    world: World, nursery: trio.Nursery, how: dict[str, Any]
) -> None:
    liar, keeper = world.members[A], world.members[B]
    world.serve(EVERY, "a", "b")
    liar.say(copy_of(checkpoint(0, EVERY), liar.folder.folder))
    path = liar.folder.path(0, EVERY)
    path.write_bytes(checkpoint(0, EVERY, **how))
    digests = copies.examine(path)[1]
    blob = Blob.of("state", 0, EVERY, path.stat().st_size, digests)
    liar.shelf.put(blob, path, temporary=False)
    nursery.start_soon(keeper.buddies.run)
    await world.until(lambda: any("no copy of stage 0" in said.words for said in keeper.said))
    assert not list(keeper.folder.folder.iterdir())
    assert keeper.shelf.offer(0, EVERY) is None


def copy_of(data: bytes, folder: Path) -> Copy:
    path = folder / "x"
    path.write_bytes(data)
    info = verify(path)
    path.unlink()
    return Copy(info.stage, info.version, bytes.fromhex(info.hash))


async def test_an_offer_of_absurd_size_costs_no_disk(world: World, nursery: trio.Nursery) -> None:
    liar, keeper = world.members[A], world.members[B]
    world.serve(EVERY, "a", "b")
    liar.say(Copy(0, EVERY, bytes(32)))
    nursery.start_soon(keeper.buddies.run)
    await trio.sleep(1)
    liar.send(B, BlobOffer("state", 0, EVERY, 2**31, bytes(32)))
    await world.until(lambda: keeper.blamed == [A])
    await world.until(lambda: not list(keeper.folder.folder.iterdir()))


async def test_a_full_disk_is_said_once_and_later_copies_come(
    world: World, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, keeper = world.members[A], world.members[B]
    world.serve(EVERY, "a", "b")
    await holder.store((0, EVERY))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Download, "_write", full)
        nursery.start_soon(keeper.buddies.run)
        await trio.sleep(10 * buddies.RETRY_S)
    warnings = [said.words for said in keeper.said if said.level == "warning"]
    assert len(warnings) == 1
    assert "No space left" in warnings[0]
    await world.until(lambda: keeper.has(0, EVERY))


async def test_the_last_replica_hands_its_last_checkpoint_over(
    world: World, nursery: trio.Nursery
) -> None:
    leaver, keeper = world.members[A], world.members[B]
    world.serve(EVERY - 1, "a", "b")
    nursery.start_soon(keeper.buddies.run)
    await leaver.store((0, EVERY - 1))
    assert await leaver.buddies.hand_over(0, EVERY - 1, 60.0)
    assert keeper.has(0, EVERY - 1), "it says so only when it is on its disk"
    assert await leaver.buddies.hand_over(0, EVERY - 1, 60.0), "it may be asked again"


async def test_handing_over_is_bounded(world: World) -> None:
    leaver = world.members[A]
    await leaver.store((0, 3))
    world.serve(3, "a", "")
    assert not await leaver.buddies.hand_over(0, 3, 60.0), "nobody is there"
    world.serve(3, "a", "b")
    began = trio.current_time()
    assert not await leaver.buddies.hand_over(0, 3, 60.0), "its buddy keeps nothing"
    assert trio.current_time() - began == pytest.approx(60.0, abs=1)
    assert not await leaver.buddies.hand_over(0, 4, 60.0), "there is no such checkpoint"


async def test_a_copy_of_an_ended_lineage_is_not_kept(world: World, nursery: trio.Nursery) -> None:
    holder, keeper = world.members[A], world.members[B]
    world.serve(EVERY, "a", "b")
    holder.say(copy_of(checkpoint(0, EVERY), holder.folder.folder))
    nursery.start_soon(keeper.buddies.run)
    await trio.sleep(5)  # it asks, and it is not given yet
    keeper.history.lineage = Lineage(1 << 32)
    await holder.store((0, EVERY))
    await world.until(lambda: any("rolled back" in said.words for said in keeper.said))
    assert not keeper.has(0, EVERY)
    assert keeper.history.told == []


async def test_what_lies_on_disk_is_offered_when_we_start(world: World) -> None:
    member = world.members[A]
    damaged = bytearray(checkpoint(1, 5))
    damaged[-1] ^= 1
    member.folder.path(1, 5).write_bytes(damaged)
    member.folder.path(2, 5).write_bytes(b"no header")
    member.folder.path(0, 7).write_bytes(checkpoint(0, 7, swarm="cd" * 32))
    (member.folder.folder / ".stage-0-v9.safetensors.tmp").write_bytes(b"interrupted")
    await member.store((0, 5))
    assert member.shelf.offer(0, 5) is not None
    assert member.shelf.offer(1, 5) is None
    assert sorted(path.name for path in member.folder.folder.iterdir()) == [
        "stage-0-v5.safetensors",
        "stage-0-v7.safetensors.damaged",
        "stage-1-v5.safetensors.damaged",
        "stage-2-v5.safetensors.damaged",
    ]
    assert [(s.stage, s.version) for s in stored_states(member.folder, SWARM, STAGES)] == [(0, 5)]
    assert any("damaged" in said.words for said in member.said)


# --- liars ---------------------------------------------------------------------------------------


def kept(member: Member) -> list[int]:
    """Versions of stage 0 on its disk."""
    return [c.version for c in member.folder.entries() if c.stage == 0]


async def two_copies(world: World, nursery: trio.Nursery) -> tuple[Member, Member]:
    """A replica of stage 0 that will lie, and the keeper of two checkpoints of it."""
    liar, keeper = world.members[A], world.members[B]
    nursery.start_soon(keeper.buddies.run)
    for version in (EVERY, 2 * EVERY):
        world.serve(version + 1, "a", "b")
        await liar.store((0, version))
        await world.until(lambda v=version: keeper.has(0, v))
    return liar, keeper


@pytest.mark.parametrize("serves", [False, True])
async def test_versions_past_what_a_stage_has_or_can_have_push_nothing_out(
    world: World, nursery: trio.Nursery, serves: bool
) -> None:
    """Its heartbeats may say that it is there; we, next to it, know better."""
    liar, keeper = await two_copies(world, nursery)
    ahead = EVERY if serves else 1
    for version in (5 * EVERY + ahead, 5 * EVERY + 2 * ahead):
        await liar.store((0, version))
        if serves:
            ours = Replica(B, 2 * EVERY + 1, True)
            world.view = SwarmView.of([[Replica(A, version, True)], [ours], []])
        await trio.sleep(60)
    assert kept(keeper) == [EVERY, 2 * EVERY]


async def test_copies_out_of_turn_leave_the_newest_that_was_due(
    world: World, nursery: trio.Nursery
) -> None:
    holder, keeper = world.members[A], world.members[B]
    nursery.start_soon(keeper.buddies.run)
    world.serve(EVERY, "a", "b")
    await holder.store((0, EVERY))
    await world.until(lambda: keeper.has(0, EVERY))
    for version in range(EVERY + 1, EVERY + 5):
        world.serve(version, "a", "b")
        await holder.store((0, version))
        assert await holder.buddies.hand_over(0, version, 60.0)
    assert kept(keeper) == [EVERY, EVERY + 3, EVERY + 4]


async def test_what_every_stage_has_stays_however_old(world: World, nursery: trio.Nursery) -> None:
    holder, keeper = world.members[A], world.members[B]
    keeper.history.whole = {(stage, EVERY) for stage in range(STAGES)}
    nursery.start_soon(keeper.buddies.run)
    for number in range(1, 5):
        world.serve(number * EVERY, "a", "b")
        await holder.store((0, number * EVERY))
        await world.until(lambda v=number * EVERY: keeper.has(0, v))
    assert kept(keeper) == [EVERY, 3 * EVERY, 4 * EVERY]


@pytest.mark.parametrize(("named", "timeout_s"), [([1], 45.0), ([1, 3], 60.0), ([0], 120.0)])
async def test_who_names_and_does_not_give_keeps_no_others_from_it(
    world: World,
    nursery: trio.Nursery,
    named: list[int],
    timeout_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    liar, honest, keeper = world.members[A], world.members[C], world.members[B]
    monkeypatch.setattr(liar, "take", AsyncMock())  # whatever it is asked for
    world.serve(EVERY + 3, "ac", "b")
    due = 0 not in named
    await honest.store((0, EVERY + 2), *[(0, EVERY)] * due)
    liar.say(*(Copy(0, EVERY + ahead, bytes(32)) for ahead in named))
    nursery.start_soon(keeper.buddies.run)
    await trio.sleep(5)
    assert await honest.buddies.hand_over(0, EVERY + 2, timeout_s)
    assert kept(keeper) == [*[EVERY] * due, EVERY + 2]
