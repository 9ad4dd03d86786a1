"""A volunteer's service: files while it may, a reason while its owner forbids it."""

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from client.compute.errors import CheckpointError, CheckpointUnreadable
from client.store.checkpoints import CheckpointFolder
from client.train.stage.stage_acquisition import sweep_copies
from client.train.transfer import blobs, inventory
from client.train.transfer.blobs import Filed, Shelf, filed
from model_zoo.specs.state_hash import file_hash, leaf_digest
from model_zoo.specs.state_hash import root as root_of
from protocol.limits import CHUNK_BYTES, MAX_CHUNKS, MAX_STEP
from protocol.transfer.blob import Blob
from protocol.wire.messages import Chunk, ChunkRequest
from tests.support.protocol_examples import peer
from tests.support.recording_ports import RecordingPorts

ASKER = peer(1)


class AskedShelf(Shelf):
    """A shelf that a peer asks, and what it answers."""

    def __init__(self) -> None:
        self.ports = RecordingPorts()
        super().__init__(self.ports)

    def has(self, path: Path, version: int = 5, *, stage: int = 0, temporary: bool = False) -> Blob:
        """Put a file there as the state of a stage at a version."""
        digests = [digest_of(data) for data in chunks_of(path.read_bytes())]
        root = bytes.fromhex(root_of(version, digests))
        blob = Blob(root, path.stat().st_size, stage, version)
        self.put(Filed(blob, b"".join(digests)), path, temporary=temporary)
        return blob

    async def answer(self, blob: Blob, index: int | None = None) -> bytes | None:
        """Ask for a chunk, or the list; the payload of the answer. None: it cannot be had."""
        (payload,) = await self.answers(blob, index)
        refused = self.ports.messages() == [Chunk(blob.root, None)] and not payload
        assert refused or self.ports.messages() == [Chunk(blob.root, index)]
        return None if refused else payload

    async def answers(self, blob: Blob, index: int | None = None) -> list[bytes]:
        """The payloads of all answers: where there is none, it may come."""
        self.ports.forget()
        await self.request(ASKER, ChunkRequest(blob.root, index, blob.stage, blob.version))
        return self.ports.payloads


def chunks_of(data: bytes) -> list[bytes]:
    return [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]


def digest_of(data: bytes) -> bytes:
    return leaf_digest([memoryview(data)])


@pytest.fixture
def shelf() -> AskedShelf:
    return AskedShelf()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of a state."""
    made = tmp_path / "state"
    made.write_bytes(b"weights")
    return made


async def test_while_the_shelf_is_closed_it_says_so_and_serves_afterwards(
    path: Path, shelf: AskedShelf
) -> None:
    blob = shelf.has(path)
    for closed in (True, False):
        shelf.is_closed = lambda: closed  # noqa: B023
        assert await shelf.answer(blob) == (None if closed else digest_of(b"weights"))
        assert await shelf.answer(blob, 0) == (None if closed else b"weights")
        assert bool(shelf.served_bytes) is not closed
        coming = Blob(blob.root[::-1], 7, 0, 9)
        assert await shelf.answers(coming) == ([b""] if closed else [])


async def test_a_chunk_that_does_not_exist_delists_nothing(path: Path, shelf: AskedShelf) -> None:
    blob = shelf.has(path)
    for index in (1, MAX_CHUNKS - 1):
        assert await shelf.answer(blob, index) is None
    assert await shelf.answer(blob, 0) == b"weights"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
async def test_a_file_that_cannot_be_read_now_is_served_later(
    path: Path, shelf: AskedShelf, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    blob = shelf.has(path)

    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fails)
        patch.setattr(Path, "stat", fails)
        assert await shelf.answer(blob, 0) is None
        shelf.put(Filed(Blob(b"o" * 32, 7, 0, 6), b""), path.with_name("other"), temporary=False)
    assert await shelf.answer(blob, 0) == b"weights"


@pytest.mark.parametrize("gone", [True, False])
async def test_what_is_gone_or_shorter_than_it_was_is_served_no_more(
    tmp_path: Path, shelf: AskedShelf, *, gone: bool
) -> None:
    def snapshot(version: int) -> tuple[Path, Blob]:
        path = tmp_path / f"snapshot-{version}"
        path.write_bytes(b"weights")
        return path, shelf.has(path, version, temporary=True)

    first, *_ = [snapshot(version)[1] for version in (2, 3, 4)]
    path, blob = snapshot(5)
    if gone:
        path.unlink()
    else:
        path.write_bytes(b"weight")
    assert await shelf.answer(blob, 0) is None
    assert await shelf.answers(blob) == [], "it may be written again"
    snapshot(6)
    assert await shelf.answer(first, 0) == b"weights", "four are kept, and it was none of them"
    shelf.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("gone", [False, True])
async def test_everything_else_goes_on_while_a_chunk_is_read(
    path: Path, shelf: AskedShelf, monkeypatch: pytest.MonkeyPatch, *, gone: bool
) -> None:
    blob = shelf.has(path)
    disk = threading.Event()

    def reads(*_: object) -> bytes:
        assert disk.wait(30.0)
        if gone:
            raise FileNotFoundError
        return b"weights"

    async with trio.open_nursery() as nursery:
        with monkeypatch.context() as patch:
            patch.setattr(blobs, "_chunk", reads)
            nursery.start_soon(shelf.request, ASKER, ChunkRequest(blob.root, 0))
            await wait_all_tasks_blocked()
        assert shelf.ports.sent == []
        path.write_bytes(b"others")
        other = shelf.has(path)
        disk.set()
    assert shelf.ports.payloads == [b"" if gone else b"weights"]
    assert await shelf.answer(other, 0) == b"others", "what was read was withdrawn meanwhile"


async def test_a_chunk_of_a_snapshot_comes_though_a_checkpoint_takes_its_place_meanwhile(
    tmp_path: Path, shelf: AskedShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasting, snapshot, read = tmp_path / "state", tmp_path / "snapshot", blobs._chunk
    for path in (lasting, snapshot):
        path.write_bytes(b"weights")
    blob = shelf.has(snapshot, temporary=True)

    def too_late(item: blobs._Item, index: int) -> bytes:
        monkeypatch.setattr(blobs, "_chunk", read)
        shelf.has(lasting)
        return read(item, index)

    monkeypatch.setattr(blobs, "_chunk", too_late)
    assert await shelf.answer(blob, 0) == b"weights"
    assert list(tmp_path.iterdir()) == [lasting]


async def test_a_snapshot_of_what_is_served_already_goes_at_once(
    tmp_path: Path, shelf: AskedShelf
) -> None:
    lasting, snapshot = tmp_path / "state", tmp_path / "snapshot"
    for path in (lasting, snapshot):
        path.write_bytes(b"weights")
    shelf.has(lasting)
    shelf.has(snapshot, temporary=True)
    assert list(tmp_path.iterdir()) == [lasting]
    assert await shelf.answer(shelf.has(lasting), 0) == b"weights"


async def test_a_snapshot_made_twice_under_one_name_stays(
    tmp_path: Path, shelf: AskedShelf
) -> None:
    path, before = tmp_path / "snapshot", list[Blob]()
    for bytes_ in (b"weights", b"weights", b"others"):
        path.write_bytes(bytes_)
        before.append(shelf.has(path, temporary=True))
        assert await shelf.answer(before[-1], 0) == bytes_
    assert await shelf.answer(before[0]) is None, "its place has other bytes"
    shelf.close()
    assert list(tmp_path.iterdir()) == []


def test_copies_that_a_killed_process_left_are_swept_but_begun_downloads_are_not(
    tmp_path: Path,
) -> None:
    resumed = ".begin-stage-0-v5.safetensors.part.tmp"
    for name in (
        "snapshot-0-v7.safetensors",
        ".snapshot-0-v8.safetensors.abc.tmp",
        "joined-0-v7.safetensors",
        ".joined-0-v7.safetensors.part.tmp",
        "begin-stage-0-v5.safetensors",
        resumed,
    ):
        (tmp_path / name).write_bytes(b"weights")
    (tmp_path / "a folder").mkdir()
    sweep_copies(tmp_path / "none", version=5)
    sweep_copies(tmp_path, version=5)
    assert {path.name for path in tmp_path.iterdir()} == {resumed, "a folder"}
    sweep_copies(tmp_path, version=6)
    assert [path.name for path in tmp_path.iterdir()] == ["a folder"], "nobody goes on with it"


async def test_who_waits_for_a_state_that_is_not_written_is_told(
    path: Path, shelf: AskedShelf
) -> None:
    seventh, eighth = (Blob(bytes([n]) * 32, 7, 0, n) for n in (7, 8))
    assert await shelf.answers(seventh) == [], "it may be on its way"
    assert await shelf.answer(seventh, 0) is None
    shelf.skip(0, 7)
    assert await shelf.answer(seventh) is None
    assert await shelf.answers(eighth) == []
    assert await shelf.answer(shelf.has(path, 7)) == digest_of(b"weights")


async def test_of_several_versions_that_one_is_given_that_is_asked_for(
    path: Path, tmp_path: Path, shelf: AskedShelf
) -> None:
    def named(version: int, stage: int = 0) -> Path:
        made = tmp_path / f"{stage}-{version}"
        made.write_bytes(b"weights")
        return made

    here = {version: shelf.has(named(version), version) for version in (3, 9, 5)}
    other = shelf.has(named(20, 1), 20, stage=1)
    listed = digest_of(b"weights")
    for blob in (*here.values(), other):
        assert await shelf.answer(blob) == listed

    def unknown(stage: int, version: int) -> Blob:
        return Blob(b"u" * 32, 7, stage, version)

    assert await shelf.answer(unknown(0, 4)) is None
    assert await shelf.answer(unknown(0, 9)) is None, "we have another state of that version"
    assert await shelf.answers(unknown(0, 10)) == [], "it may be on its way"
    assert await shelf.answers(unknown(2, 4)) == []
    shelf.withdraw_above(5)
    assert await shelf.answers(here[9]) == [], "it may be on its way again"
    assert await shelf.answer(here[5]) == listed
    (tmp_path / "0-5").unlink()
    assert await shelf.answers(here[5]) == []
    assert await shelf.answer(here[3]) == listed
    assert await shelf.answers(other) == []


async def test_what_is_no_state_is_here_or_is_not(path: Path, shelf: AskedShelf) -> None:
    file = filed(path)
    assert await shelf.answer(file.blob) is None
    shelf.put(file, path, temporary=False)
    shelf.withdraw_above(-1)
    assert await shelf.answer(file.blob) == digest_of(b"weights")
    assert file.blob.root.hex() == file_hash(b"weights")


class Leaves:
    """Gives one leaf of two."""

    root = b"d" * 32

    def __init__(self, *, some: bool) -> None:
        self._some = some

    async def read(self, index: int | None) -> bytes:
        if index is None:
            return self.root if self._some else b""
        return b"leaf" if index == 1 else b""


async def test_leaves_are_given_one_by_one(shelf: AskedShelf) -> None:
    data = Blob(Leaves.root, 8)
    assert await shelf.answer(data) is None
    for some in (False, True):
        shelf.leaves = Leaves(some=some)
        assert await shelf.answers(data) == [data.root if some else b""]
    assert [await shelf.answer(data, index) for index in (1, 0)] == [b"leaf", b""]
    shelf.is_closed = lambda: True
    assert await shelf.answer(data, 1) is None


async def test_a_large_file_is_served_in_chunks_after_the_list_of_their_digests(
    tmp_path: Path, shelf: AskedShelf
) -> None:
    path, rest = tmp_path / "state", b"the rest"
    path.write_bytes(bytes(CHUNK_BYTES) + rest)
    file = filed(path)
    shelf.put(file, path, temporary=False)
    answers = [await shelf.answer(file.blob, index) for index in (None, 0, 1, 2)]
    assert answers == [file.listed, bytes(CHUNK_BYTES), rest, None]
    assert shelf.served_bytes == len(file.listed) + CHUNK_BYTES + len(rest)


async def test_a_state_is_served_without_the_header_of_its_file(
    tmp_path: Path, shelf: AskedShelf
) -> None:
    path, data = tmp_path / "state", os.urandom(CHUNK_BYTES + 4)
    path.write_bytes(b"header" + data)
    digests = b"".join(map(digest_of, chunks_of(data)))
    blob = Blob(b"r" * 32, len(data), 0, 5)
    shelf.put(Filed(blob, digests, len(b"header")), path, temporary=False)
    assert [await shelf.answer(blob, index) for index in (0, 1)] == chunks_of(data)


# --- what lies on the disk --------------------------------------------------------------------

SWARM, STAGES = "ab" * 32, 2


def test_an_inventory_passes_over_what_is_damaged_misnamed_or_not_to_be_read_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, never = CheckpointFolder(tmp_path), MAX_STEP + 1
    texts = {(0, 5): "0 5", (0, 6): "x", (0, 7): "0 7", (1, 5): "1 4", (1, 6): "1 6"}
    texts[1, never] = f"1 {never}"
    for (stage, version), text in texts.items():
        folder.path(stage, version).write_text(text)

    def read(path: Path) -> SimpleNamespace:
        if path == folder.path(0, 7):
            raise CheckpointUnreadable("too many open files")
        if path == folder.path(0, 6):
            raise CheckpointError("no header")
        stage, version = map(int, path.read_text().split())
        return SimpleNamespace(swarm=SWARM, stages=STAGES, stage=stage, version=version)

    monkeypatch.setattr(inventory, "read_info", read)
    for _ in range(2):
        found = inventory.stored_states(folder, SWARM, STAGES)
        assert [(one.stage, one.version) for one in found] == [(0, 5), (1, 6)]
        assert sorted(path.name for path in tmp_path.glob("*.damaged")) == [
            "stage-0-v6.safetensors.damaged",
            f"stage-1-v{never}.safetensors.damaged",
            "stage-1-v5.safetensors.damaged",
        ]
    assert [(entry.stage, entry.version) for entry in folder.entries()] == [(0, 5), (0, 7), (1, 6)]
    assert inventory.stored_states(CheckpointFolder(tmp_path / "missing"), SWARM, STAGES) == []


async def test_of_a_disk_that_cannot_be_read_nothing_is_offered_and_the_owner_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shelf: AskedShelf
) -> None:
    def fails(_: CheckpointFolder) -> list[object]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(CheckpointFolder, "entries", fails)
    await inventory.offer_stored(CheckpointFolder(tmp_path), shelf, shelf.ports)
    assert [words.partition(" cannot be read: ")[2] for words in shelf.ports.warnings()] == [
        "Input/output error"
    ]
