"""Copies of a neighbour's checkpoints: fetched, verified, bounded, handed over before leaving."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
import trio

from client.compute.checkpoint import examine, read_info
from client.store.checkpoints import CheckpointFolder
from client.train.recovery import buddies
from client.train.recovery.buddies import Buddies
from client.train.transfer.blobs import Download, Downloads, Shelf, filed_state
from client.train.transfer.inventory import checked, offer_stored, stored_states
from model_zoo.specs.slices import slices
from model_zoo.specs.state import size, stage_layout
from protocol.ids import PeerId
from protocol.manifest import Policy
from protocol.membership.roster import Roster
from protocol.recovery.stored import Copy, Lineage, Stored
from protocol.view import Replica, SwarmView
from protocol.wire.messages import ChunkRequest, Message
from tests.support.hashes import checkpoint_of
from tests.support.protocol_examples import manifest
from tests.support.recording_ports import RecordingPorts
from tests.support.virtual_time import at_once

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
SWARM = "ab" * 32
MANIFEST = manifest(stages=3, policy=Policy(checkpoint_every=10))
STAGES = MANIFEST.stage_count
EVERY = MANIFEST.policy.checkpoint_every
LIMIT_S = 120.0


def checkpoint(stage: int, version: int, *, swarm: str = SWARM, fill: int = 0) -> bytes:
    """A checkpoint of the right size for the stage; every byte of its data is ``fill``."""
    layout = stage_layout(MANIFEST.model, slices(MANIFEST.layers_per_stage)[stage])
    data = bytes([fill]) * (12 * size(layout))
    return checkpoint_of(swarm, stage, STAGES, version, data, layout)


@dataclass
class History:
    """The history's interface to buddies."""

    publish: Callable[[], None]
    lineage: Lineage = field(default_factory=Lineage)
    said: dict[PeerId, Stored] = field(default_factory=dict)
    """The records of the others."""
    own: tuple[Copy, ...] = ()
    told: list[tuple[int, int]] = field(default_factory=list)
    whole: set[tuple[int, int]] = field(default_factory=set)

    @property
    def machine(self) -> Any:
        known = SimpleNamespace(stored=self.said, own_copies=lambda: self.own)
        return SimpleNamespace(known=known)

    def protected(self) -> set[tuple[int, int]]:
        return self.whole

    def stored(self, stage: int, version: int) -> None:
        self.told.append((stage, version))
        self.publish()


class Member(RecordingPorts):
    """A volunteer without seats, worker and network: shelf, folder, buddies."""

    def __init__(self, world: World, me: PeerId, folder: Path) -> None:
        super().__init__(me, MANIFEST)
        self._world = world
        folder.mkdir()
        self.folder = CheckpointFolder(folder)
        self.shelf, self.history = Shelf(self), History(self.say)
        self.downloads = Downloads(self)
        self.time = None
        self.spoil: Callable[[bytes], bytes] = lambda payload: payload
        self.buddies = Buddies(
            self, self.folder, self.shelf, self.downloads, cast(Any, self.history), Roster(me)
        )

    def send(self, peer: PeerId, message: Message, payload: bytes = b"") -> None:
        self._world.post(self.me, peer, message, self.spoil(payload))

    async def take(self, sender: PeerId, message: Message, payload: bytes) -> None:
        match message:
            case ChunkRequest():
                await self.shelf.request(sender, message)
            case _:
                self.downloads.receive(sender, message, payload)

    async def store(self, *copies: tuple[int, int], **how: Any) -> None:
        """Have checkpoints on disk and on the shelf."""
        for stage, version in copies:
            self.folder.path(stage, version).write_bytes(checkpoint(stage, version, **how))
        await offer_stored(self.folder, self.shelf, self)
        self.say()

    def say(self, *more: Copy) -> None:
        """Publish a record of what is on disk, and of ``more`` that is not."""
        files = ((c.stage, c.version, read_info(c.path).hash) for c in self.folder.entries())
        there = (Copy(stage, version, bytes.fromhex(digest)) for stage, version, digest in files)
        self.history.own = tuple(sorted({*there, *more}))
        for other in self._world.members.values():
            other.history.said[self.me] = Stored(self.history.lineage, self.history.own)

    def serves(self, stage: int, version: int) -> bool:
        blobs = [item.filed.blob for item in self.shelf._items.values()]
        return any((blob.stage, blob.version) == (stage, version) for blob in blobs)

    def has(self, stage: int, version: int) -> bool:
        return self.folder.path(stage, version).exists()


class World:
    """A message takes a moment; absent members do not get it."""

    def __init__(self, folder: Path, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.members: dict[PeerId, Member] = {}
        self.members |= {peer: Member(self, peer, folder / peer) for peer in (A, B, C)}

    def serve(self, version: int, *stages: str) -> None:
        """The replicas of each stage, a letter per replica."""
        held = [[Replica(PeerId(name), version, True) for name in names] for names in stages]
        self.see(SwarmView.of([*held, *[[]] * (STAGES - len(held))]))

    def see(self, view: SwarmView) -> None:
        """The members see that, and hold what is theirs."""
        for peer, member in self.members.items():
            member.held_stages.view = view
            held = [s for s, there in enumerate(view.stages) if any(r.peer == peer for r in there)]
            member.held_stages.held = dict.fromkeys(held)

    def post(self, sender: PeerId, to: PeerId, message: Message, payload: bytes) -> None:
        self._nursery.start_soon(self._deliver, sender, to, message, payload)

    async def _deliver(self, sender: PeerId, to: PeerId, message: Message, payload: bytes) -> None:
        await trio.sleep(0.01)
        if to in self.members:
            await self.members[to].take(sender, message, payload)

    async def until(self, happened: Callable[[], object]) -> None:
        with trio.fail_after(LIMIT_S):
            while not happened():
                await trio.sleep(0.1)


@pytest.fixture
async def world(tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> World:
    """Three volunteers who serve nothing yet; threads are none."""
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    return World(tmp_path, nursery)


@pytest.mark.parametrize("stage", [0, 1])
async def test_the_buddy_keeps_every_checkpoint_and_bounds_its_disk(
    world: World, nursery: trio.Nursery, stage: int
) -> None:
    holder, keeper = world.members[A], world.members[B]
    nursery.start_soon(keeper.buddies.run)
    for number in range(1, 5):
        world.serve(number * EVERY + 1, *("ab" if stage == 0 else "ba"))
        await holder.store((stage, number * EVERY))
        await world.until(lambda v=number * EVERY: keeper.serves(stage, v))
    assert [(c.stage, c.version) for c in keeper.folder.entries()] == [
        (stage, 3 * EVERY),
        (stage, 4 * EVERY),
    ]
    assert not keeper.serves(stage, EVERY)
    made, kept = (one.folder.path(stage, 4 * EVERY) for one in (holder, keeper))
    assert kept.read_bytes() == made.read_bytes()
    assert (
        checked(examine(keeper.folder.path(stage, 4 * EVERY))[0], SWARM, STAGES).version
        == 4 * EVERY
    )
    assert keeper.history.told == [(stage, EVERY * n) for n in range(1, 5)]
    assert not holder.blamed()
    assert not keeper.blamed()
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


async def test_what_is_not_the_state_that_was_named_is_not_kept(
    world: World, nursery: trio.Nursery
) -> None:
    liar, keeper = world.members[A], world.members[B]
    world.serve(EVERY, "a", "b")
    named = copy_of(checkpoint(0, EVERY), liar.folder.folder)
    liar.say(named)
    path = liar.folder.path(0, EVERY)
    path.write_bytes(checkpoint(0, EVERY, fill=1))
    other = filed_state(*examine(path))
    lie = replace(other, blob=replace(other.blob, root=named.hash))
    liar.shelf.put(lie, path, temporary=False)
    nursery.start_soon(keeper.buddies.run)
    await world.until(lambda: any("no copy of stage 0" in said.words for said in keeper.told()))
    assert keeper.blamed() == [A]
    assert not list(keeper.folder.folder.iterdir())
    assert not keeper.serves(0, EVERY)


def copy_of(data: bytes, folder: Path) -> Copy:
    path = folder / "x"
    path.write_bytes(data)
    info = examine(path)[0]
    path.unlink()
    return Copy(info.stage, info.version, bytes.fromhex(info.hash))


@pytest.mark.parametrize(
    ("of", "method", "number"),
    [(Download, "_write", errno.ENOSPC), (CheckpointFolder, "entries", errno.EIO)],
)
async def test_trouble_with_the_disk_is_said_once_and_later_copies_come(
    world: World,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
    of: type,
    method: str,
    number: int,
) -> None:
    holder, keeper = world.members[A], world.members[B]
    world.serve(EVERY, "a", "b")
    await holder.store((0, EVERY))

    def fails(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(of, method, fails)
        nursery.start_soon(keeper.buddies.run)
        await trio.sleep(10 * buddies.RETRY_S)
    (warning,) = keeper.warnings()
    assert os.strerror(number) in warning
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
    await world.until(lambda: any("rolled back" in said.words for said in keeper.told()))
    assert not keeper.has(0, EVERY)
    assert keeper.history.told == []


async def test_what_lies_on_disk_is_offered_when_we_start(world: World) -> None:
    member = world.members[A]
    damaged = bytearray(checkpoint(1, 5))
    damaged[-1] ^= 1
    member.folder.path(1, 5).write_bytes(damaged)
    member.folder.path(2, 5).write_bytes(b"no header")
    member.folder.path(0, 7).write_bytes(checkpoint(0, 7, swarm="cd" * 32))
    await member.store((0, 5))
    assert member.serves(0, 5)
    assert not member.serves(1, 5)
    assert sorted(path.name for path in member.folder.folder.iterdir()) == [
        "stage-0-v5.safetensors",
        "stage-0-v7.safetensors.damaged",
        "stage-1-v5.safetensors.damaged",
        "stage-2-v5.safetensors.damaged",
    ]
    assert [(s.stage, s.version) for s in stored_states(member.folder, SWARM, STAGES)] == [(0, 5)]
    assert any("damaged" in said.words for said in member.told())


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
            world.see(SwarmView.of([[Replica(A, version, True)], [ours], []]))
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
