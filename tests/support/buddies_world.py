"""Volunteers without seats that keep copies of one another's checkpoints, on virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from client.compute.checkpoint import read_info
from client.store.checkpoints import CheckpointFolder
from client.train.recovery.buddies import Buddies
from client.train.transfer.blobs import Downloads, Shelf
from client.train.transfer.inventory import offer_stored
from model_zoo.specs.slices import stage_parameters
from protocol.effects import Effect, Explain, Penalise
from protocol.ids import PeerId, SwarmId
from protocol.manifest import Policy
from protocol.recovery.stored import Copy, Lineage, Stored
from protocol.view import Replica, SwarmView
from protocol.wire.messages import BlobQuery, ChunkRequest, Message
from tests.support.hashes import checkpoint_of
from tests.support.protocol_examples import manifest
from tests.support.virtual_time import at_once

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
SWARM = "ab" * 32
MANIFEST = manifest(stages=3, policy=Policy(checkpoint_every=10))
STAGES = MANIFEST.stage_count
EVERY = MANIFEST.policy.checkpoint_every
LIMIT_S = 120.0


def checkpoint(stage: int, version: int, *, swarm: str = SWARM, fill: int = 0) -> bytes:
    """A checkpoint of the right size for the stage; every byte of its data is ``fill``."""
    count = stage_parameters(MANIFEST.model, MANIFEST.layers_per_stage, stage)
    data = bytes([fill]) * (12 * count)
    return checkpoint_of(swarm, stage, STAGES, version, data)


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


class Member:
    """A volunteer without seats, worker and network: shelf, folder, buddies."""

    def __init__(self, world: World, me: PeerId, folder: Path) -> None:
        self._world, self.me = world, me
        folder.mkdir()
        self.folder = CheckpointFolder(folder)
        self.shelf, self.history = Shelf(self), History(self.say)
        self.downloads = Downloads(self, MANIFEST, SwarmId(SWARM))
        self.said: list[Explain] = []
        self.blamed: list[PeerId] = []
        self.spoil: Callable[[bytes], bytes] = lambda payload: payload
        self.buddies = Buddies(
            self,
            me,
            self.folder,
            self.shelf,
            self.downloads,
            cast(Any, self.history),
            view=lambda: world.view,
            held=lambda: world.held(me),
        )

    def now(self) -> float:
        return trio.current_time()

    def send(self, peer: PeerId, message: Message, payload: bytes = b"") -> None:
        self._world.post(self.me, peer, message, self.spoil(payload))

    def perform(self, effect: Effect) -> None:
        if isinstance(effect, Explain):
            self.said.append(effect)
        elif isinstance(effect, Penalise):
            self.blamed.append(effect.peer)

    async def take(self, sender: PeerId, message: Message, payload: bytes) -> None:
        match message:
            case BlobQuery():
                self.shelf.query(sender, message)
            case ChunkRequest():
                await self.shelf.request(sender, message)
            case _:
                self.downloads.receive(sender, message, payload)

    async def store(self, *copies: tuple[int, int], **how: Any) -> None:
        """Have checkpoints on disk and on the shelf."""
        for stage, version in copies:
            self.folder.path(stage, version).write_bytes(checkpoint(stage, version, **how))
        await offer_stored(self.folder, SWARM, STAGES, self.shelf, self)
        self.say()

    def say(self, *more: Copy) -> None:
        """Publish a record of what is on disk, and of ``more`` that is not."""
        files = ((c.stage, c.version, read_info(c.path).hash) for c in self.folder.entries())
        there = (Copy(stage, version, bytes.fromhex(digest)) for stage, version, digest in files)
        self.history.own = tuple(sorted({*there, *more}))
        for other in self._world.members.values():
            other.history.said[self.me] = Stored(self.history.lineage, self.history.own)

    def has(self, stage: int, version: int) -> bool:
        return self.folder.path(stage, version).exists()


class World:
    """A message takes a moment; absent members do not get it."""

    def __init__(self, folder: Path, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.members: dict[PeerId, Member] = {}
        self.members |= {peer: Member(self, peer, folder / peer) for peer in (A, B, C)}
        self.view = SwarmView(((),) * STAGES)

    def serve(self, version: int, *stages: str) -> None:
        """The replicas of each stage, a letter per replica."""
        held = [[Replica(PeerId(name), version, True) for name in names] for names in stages]
        self.view = SwarmView.of([*held, *[[]] * (STAGES - len(held))])

    def held(self, peer: PeerId) -> set[int]:
        return {s for s in range(STAGES) if any(r.peer == peer for r in self.view.stages[s])}

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


def open_world(folder: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> World:
    """Three volunteers who serve nothing yet; threads are none."""
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    return World(folder, nursery)
