"""Copying the model out of a swarm: versions and donors come from the signed records."""

from collections.abc import Mapping
from dataclasses import replace as replaced
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from client.compute.checkpoint import examine
from client.errors import UserError
from client.node import gather
from client.train.ports import StageHolder
from client.train.recovery.witnesses import MAX_VERSIONS, candidates
from client.train.transfer.blobs import Downloads, Shelf, filed, filed_state
from model_zoo.specs.data import DataSpec
from model_zoo.specs.slices import slices, stage_parameters
from model_zoo.specs.state import stage_layout
from model_zoo.specs.state_hash import file_hash
from model_zoo.specs.tokens import TokenizerSpec
from protocol.effects import Effect, Send
from protocol.ids import PeerId, SwarmId
from protocol.recovery.stored import STORED, Copy, Lineage, Stored
from protocol.view import Replica, SwarmView
from protocol.wire.messages import ChunkRequest, Message
from tests.support.hashes import checkpoint_of, state_hash
from tests.support.protocol_examples import manifest, peer

SWARM = "ab" * 32
MANIFEST = manifest(stages=2)
FIRST, SECOND, HOLDER, STRANGER, ME = (peer(n) for n in range(1, 6))


def size(stage: int) -> int:
    return 12 * stage_parameters(MANIFEST.model, MANIFEST.layers_per_stage, stage)


def digest(stage: int, version: int, fill: int = 0) -> bytes:
    return bytes.fromhex(state_hash(version, memoryview(bytes([fill]) * size(stage))))


def checkpoint(stage: int, version: int, fill: int) -> bytes:
    layout = stage_layout(MANIFEST.model, slices(MANIFEST.layers_per_stage)[stage])
    return checkpoint_of(SWARM, stage, 2, version, bytes([fill]) * size(stage), layout)


def copies(*named: tuple[int, int], fill: int = 0, lineage: Lineage | None = None) -> Stored:
    """A record that names these stages and versions."""
    found = sorted(Copy(stage, version, digest(stage, version, fill)) for stage, version in named)
    return Stored(lineage or Lineage(), tuple(found))


class Swarm:
    """The engine of the observer, and the members that answer what it sends."""

    def __init__(self, folder: Path) -> None:
        self.held_stages = StageHolder(2)
        self.held_stages.view = view(20, 20)
        self.asked = set[PeerId]()
        self._folder, self._shelves = folder, dict[PeerId, Shelf]()
        self._records = list[Any]()
        self.membership = SimpleNamespace(records=self._records)
        self.manifest, self.penalties = MANIFEST, list[Effect]()
        self.swarm = SwarmId(SWARM)
        self.downloads = Downloads(cast(Any, self))
        self._send, self._queue = trio.open_memory_channel[Any](1000)

    def now(self) -> float:
        return trio.current_time()

    def perform(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self.send(effect.peer, effect.message)
        else:
            self.penalties.append(effect)

    def send(self, peer: PeerId, message: Message, payload: bytes = b"") -> None:
        self.asked.add(peer)
        self._send.send_nowait((peer, message))

    def says(self, author: PeerId, stored: Stored) -> None:
        """A signed record of a member comes."""
        envelope = SimpleNamespace(kind=STORED)
        self._records.append(SimpleNamespace(envelope=envelope, said=stored, signer=author))

    def has(
        self, member: PeerId, *named: tuple[int, int], fill: int = 0, lying: bool = False
    ) -> None:
        """A member serves checkpoints; ``lying``: as if they were the swarm's."""
        ports = SimpleNamespace(
            send=lambda _, message, payload=b"": self.downloads.receive(member, message, payload)
        )
        shelf = self._shelves.setdefault(member, Shelf(cast(Any, ports)))
        for stage, version in named:
            path = self._folder / f"{member}-{stage}-{version}-{fill}"
            path.write_bytes(checkpoint(stage, version, fill))
            state = filed_state(*examine(path))
            if lying:
                state = replaced(state, blob=replaced(state.blob, root=digest(stage, version)))
            shelf.put(state, path, temporary=False)

    async def answer(self) -> None:
        async for member, message in self._queue:
            if (shelf := self._shelves.get(member)) is None:
                continue
            if isinstance(message, ChunkRequest):
                await shelf.request(ME, message)

    async def copy(self, out: Path) -> list[Path]:
        found, failure = list[Path](), None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.answer)
            try:
                found = await gather._copy_newest(cast(Any, self), out, lambda words: None)
            except UserError as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return found


def view(*versions: int) -> SwarmView:
    """FIRST serves stage 0 and SECOND stage 1, at these versions."""
    return SwarmView.of(
        [[Replica(p, version, True)] for p, version in zip((FIRST, SECOND), versions, strict=True)]
    )


@pytest.fixture
def swarm(tmp_path: Path) -> Swarm:
    """Both stages have versions 10 and 20 on their replicas' disks."""
    swarm = Swarm(tmp_path)
    for stage, member in enumerate((FIRST, SECOND)):
        swarm.has(member, (stage, 10), (stage, 20))
        swarm.says(member, copies((stage, 10), (stage, 20)))
    return swarm


def versions(paths: list[Path]) -> list[str]:
    return [path.stem for path in paths]


@pytest.mark.parametrize("version", [15, 20, 25, 30])
async def test_a_stranger_with_records_of_its_own_is_not_believed(
    swarm: Swarm, tmp_path: Path, autojump_clock: MockClock, version: int
) -> None:
    swarm.held_stages.view = view(26, 26)
    false = [(0, version), (1, version)]
    swarm.has(STRANGER, *false, fill=7)
    swarm.says(STRANGER, copies(*false, fill=7))
    paths = await swarm.copy(tmp_path / "out")
    assert [path.read_bytes() for path in paths] == [checkpoint(s, 20, 0) for s in (0, 1)]


async def test_a_tokenizer_is_copied_from_whoever_has_the_true_one(
    nursery: trio.Nursery, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """One gives another as if it were the true one, one has another, one has none."""
    swarm = Swarm(tmp_path)
    true, root = b'{"model": 1}', file_hash(b'{"model": 1}')
    for member, content in ((FIRST, b'{"model": 2}'), (SECOND, b"x" * 99), (HOLDER, true)):
        swarm.has(member)
        path = tmp_path / f"{member}.json"
        path.write_bytes(content)
        file = filed(path)
        if member == FIRST:
            file = replaced(file, blob=replaced(file.blob, root=bytes.fromhex(root)))
        swarm._shelves[member].put(file, path, temporary=False)
    swarm.has(STRANGER)
    swarm.handshake = SimpleNamespace(admitted={FIRST, SECOND, HOLDER, STRANGER})  # type: ignore[attr-defined]
    spec = TokenizerSpec(root, len(true), 300, "0.23.3")
    swarm.manifest = replace(MANIFEST, data=DataSpec("book", 10_000, "0" * 64, spec))
    said: list[str] = []
    nursery.start_soon(swarm.answer)
    copy = gather._copy_tokenizer
    await copy(cast(Any, swarm), tmp_path / "out", said.append)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == true
    del swarm._shelves[HOLDER]
    await copy(cast(Any, swarm), tmp_path / "other", said.append)
    assert not (tmp_path / "other" / "tokenizer.json").exists()
    assert said == ["no member that could be reached has the swarm's tokenizer"]
    blamed = {(cast(Any, one).peer, cast(Any, one).reason) for one in swarm.penalties}
    assert blamed == {(FIRST, "chunk-with-wrong-digest")}


async def test_who_gives_what_the_records_do_not_name_keeps_nobody_from_giving_it(
    swarm: Swarm, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The liar names the right hash and answers sooner than the honest replica does."""
    swarm.has(HOLDER, (0, 20), fill=7, lying=True)
    swarm.says(HOLDER, copies((0, 20)))
    swarm._shelves[FIRST].is_closed = lambda: trio.current_time() <= 2
    paths = await swarm.copy(tmp_path / "out")
    assert HOLDER in swarm.asked
    assert {cast(Any, one).peer for one in swarm.penalties} == {HOLDER}
    assert [path.read_bytes() for path in paths] == [checkpoint(s, 20, 0) for s in (0, 1)]


async def test_where_all_is_false_nothing_is_taken(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    swarm = Swarm(tmp_path)
    for stage, member in enumerate((FIRST, SECOND)):
        swarm.has(member, (stage, 20), fill=7, lying=True)
        swarm.says(member, copies((stage, 20)))
    with pytest.raises(UserError, match="0 of 1 chunks came"):
        await swarm.copy(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_replicas_outweigh_others_and_versions_are_bounded() -> None:
    stored: Mapping[PeerId, Stored] = {
        FIRST: copies(*((0, v) for v in range(1, 21))),
        SECOND: copies(*((1, v) for v in range(1, 21))),
        HOLDER: copies((0, 20), (1, 20), fill=7),
        STRANGER: copies((0, 20), (1, 20), (0, 99), (1, 99), fill=7),
    }
    found = candidates(stored, view(20, 20))
    assert [one.version for one in found] == list(range(20, 20 - MAX_VERSIONS, -1))
    assert found[0].hashes == (digest(0, 20), digest(1, 20))
    assert found[0].donors == ((FIRST,), (SECOND,))
    alone = candidates({HOLDER: stored[HOLDER]}, view(20, 20))
    assert [one.hashes for one in alone] == [(digest(0, 20, 7), digest(1, 20, 7))]
    assert candidates({}, view(20, 20)) == []


def test_copies_of_a_lineage_that_has_ended_do_not_count() -> None:
    now = Lineage(1 << 32, 10, (digest(0, 10), digest(1, 10)), (FIRST,))
    stored = {
        FIRST: copies((0, 10), (0, 15), lineage=now),
        SECOND: copies((1, 10), lineage=now),
        STRANGER: copies((0, 10), (1, 10), (1, 15), fill=7),
    }
    found = candidates(stored, view(20, 20))
    assert [one.version for one in found] == [10]
