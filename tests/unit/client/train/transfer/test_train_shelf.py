"""A volunteer's service: files while it may, a reason while its owner forbids it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from client.train.stage.stage_acquisition import sweep_copies
from client.train.transfer import blobs
from client.train.transfer.blobs import Shelf, blob_of_file
from protocol.limits import CHUNK_BYTES, MAX_CHUNKS
from protocol.transfer.blob import refusal
from protocol.transfer.leaves import LEAVES
from protocol.wire.messages import BlobOffer, BlobQuery, Chunk, ChunkRequest, Message
from tests.support.protocol_examples import peer
from tests.support.recording_ports import RecordingPorts

ASKER = peer(1)


class AskedShelf(Shelf):
    """A shelf that a peer asks, and what it answers."""

    def __init__(self) -> None:
        self.ports = RecordingPorts()
        super().__init__(self.ports)

    def offers(self, path: Path, version: int = 5, *, temporary: bool = False) -> BlobOffer:
        blob = blob_of_file("state", 0, version, path)
        self.put(blob, path, temporary=temporary)
        return blob.offer

    async def replies(self, index: int, version: int = 5) -> list[str]:
        """Ask for a chunk; the kinds of the answers."""
        self.ports.forget()
        await self.request(ASKER, ChunkRequest("state", 0, version, index))
        return [type(message).__name__ for message in self.ports.messages()]

    def answers(self, *query: object) -> list[Message]:
        """What is answered to a query for a kind, a stage and a version."""
        self.ports.forget()
        self.query(ASKER, BlobQuery(*query))  # type: ignore[arg-type]
        return self.ports.messages()


@pytest.fixture
def shelf() -> AskedShelf:
    return AskedShelf()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of a state."""
    made = tmp_path / "state"
    made.write_bytes(b"weights")
    return made


async def test_while_the_shelf_is_closed_it_says_why_and_serves_afterwards(
    path: Path, shelf: AskedShelf
) -> None:
    offer = shelf.offers(path)
    for reason in ("the quota", ""):
        shelf.ports.forget()
        shelf.closed_because = lambda: reason  # noqa: B023
        shelf.query(ASKER, BlobQuery("state", 0, 5))
        await shelf.request(ASKER, ChunkRequest("state", 0, 5, 0))
        refused = [refusal("state", 0, 5)] * 2
        given = [offer, Chunk("state", 0, 5, 0)]
        assert shelf.ports.messages() == (refused if reason else given)
        assert shelf.ports.payloads[1] == (b"" if reason else b"weights")
        assert bool(shelf.served_bytes) is not bool(reason)


async def test_a_chunk_that_does_not_exist_delists_nothing(path: Path, shelf: AskedShelf) -> None:
    shelf.offers(path)
    for index in (1, MAX_CHUNKS - 1):
        assert await shelf.replies(index) == ["BlobOffer"]
    assert await shelf.replies(0) == ["Chunk"]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
async def test_a_file_that_cannot_be_read_now_is_served_later(
    path: Path, shelf: AskedShelf, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    shelf.offers(path)

    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fails)
        assert await shelf.replies(0) == ["BlobOffer"]
    assert await shelf.replies(0) == ["Chunk"]


@pytest.mark.parametrize("gone", [True, False])
async def test_what_is_gone_or_shorter_than_offered_is_offered_no_more(
    tmp_path: Path, shelf: AskedShelf, *, gone: bool
) -> None:
    def snapshot(version: int) -> Path:
        path = tmp_path / f"snapshot-{version}"
        path.write_bytes(b"weights")
        shelf.offers(path, version, temporary=True)
        return path

    for version in (2, 3, 4):
        snapshot(version)
    path = snapshot(5)
    if gone:
        path.unlink()
    else:
        path.write_bytes(b"weight")
    assert await shelf.replies(0) == ["BlobOffer"]
    assert shelf.offer(0, 5) is None
    snapshot(6)
    assert await shelf.replies(0, 2) == ["Chunk"], "four are kept, and it was none of them"
    shelf.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("gone", [False, True])
async def test_everything_else_goes_on_while_a_chunk_is_read(
    path: Path, shelf: AskedShelf, monkeypatch: pytest.MonkeyPatch, *, gone: bool
) -> None:
    shelf.offers(path)
    disk = threading.Event()

    def reads(*_: object) -> bytes:
        assert disk.wait(30.0)
        if gone:
            raise FileNotFoundError
        return b"weights"

    monkeypatch.setattr(blobs, "_chunk", reads)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shelf.request, ASKER, ChunkRequest("state", 0, 5, 0))
        await wait_all_tasks_blocked()
        assert shelf.ports.sent == []
        path.write_bytes(b"others")
        other = shelf.offers(path)
        disk.set()
    assert isinstance(shelf.ports.messages()[0], BlobOffer if gone else Chunk)
    assert shelf.offer(0, 5) == other, "what was read was withdrawn meanwhile"


async def test_a_snapshot_of_what_is_served_already_goes_at_once(
    tmp_path: Path, shelf: AskedShelf
) -> None:
    lasting, snapshot = tmp_path / "state", tmp_path / "snapshot"
    for path in (lasting, snapshot):
        path.write_bytes(b"weights")
    shelf.offers(lasting)
    shelf.offers(snapshot, temporary=True)
    assert list(tmp_path.iterdir()) == [lasting]
    shelf.offers(lasting)
    assert await shelf.replies(0) == ["Chunk"]


async def test_a_snapshot_made_twice_under_one_name_stays(
    tmp_path: Path, shelf: AskedShelf
) -> None:
    path = tmp_path / "snapshot"
    for bytes_ in (b"weights", b"weights", b"others"):
        path.write_bytes(bytes_)
        shelf.offers(path, temporary=True)
        assert await shelf.replies(0) == ["Chunk"]
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


def test_who_waits_for_a_state_that_is_not_written_is_told(path: Path, shelf: AskedShelf) -> None:
    shelf.query(ASKER, BlobQuery("state", 0, 7))
    assert shelf.ports.sent == []  # it may be on its way
    shelf.skip(0, 7)
    shelf.query(ASKER, BlobQuery("state", 0, 7))
    shelf.query(ASKER, BlobQuery("state", 0, 8))
    [answer] = shelf.ports.messages()
    assert answer == refusal("state", 0, 7)
    shelf.put(blob_of_file("state", 0, 7, path), path, temporary=False)
    shelf.query(ASKER, BlobQuery("state", 0, 7))
    assert isinstance(shelf.ports.messages()[-1], BlobOffer)


def test_of_several_versions_that_one_is_offered_that_is_asked_for(
    path: Path, shelf: AskedShelf
) -> None:
    offers = {v: shelf.offers(path, v) for v in (3, 9, 5)}
    shelf.put(blob_of_file("state", 1, 20, path), path, temporary=False)
    for version in (3, 9, 5):
        assert shelf.answers("state", 0, version) == [offers[version]]
    gone = refusal("state", 0, 4)
    assert shelf.answers("state", 0, 4) == [gone]
    assert shelf.answers("state", 0, 10) == [], "it may be on its way"
    assert shelf.answers("state", 2, 4) == []
    shelf.withdraw_above(5)
    assert shelf.answers("state", 0, 9) == [], "it may be on its way again"
    assert shelf.answers("state", 0, 5) == [offers[5]]
    shelf.withdraw(0, 5)
    assert shelf.answers("state", 0, 5) == []
    assert shelf.answers("state", 0, 3) == [offers[3]]
    assert shelf.offer(1, 20) is None


def test_what_is_no_state_is_here_or_is_not(path: Path, shelf: AskedShelf) -> None:
    assert shelf.answers("data", 0, 0) == [refusal("data", 0, 0)]
    blob = blob_of_file("data", 0, 0, path)
    shelf.put(blob, path, temporary=False)
    assert shelf.answers("data", 0, 0) == [blob.offer]


class Leaves:
    """Gives one leaf of two."""

    def __init__(self, offered: BlobOffer | None) -> None:
        self.offered = offered

    def offer(self) -> BlobOffer | None:
        return self.offered

    async def read(self, index: int) -> bytes:
        return b"leaf" if index == 1 else b""


async def test_leaves_are_given_one_by_one(shelf: AskedShelf) -> None:
    none = refusal("data", 0, LEAVES)
    assert shelf.answers("data", 0, LEAVES) == [none]
    offer = BlobOffer("data", 0, LEAVES, 8, [b"d" * 32])
    for offered, answer in ((None, none), (offer, offer)):
        shelf.leaves = Leaves(offered)
        assert shelf.answers("data", 0, LEAVES) == [answer]
    shelf.ports.forget()
    for index in (1, 0, None):
        await shelf.request(ASKER, ChunkRequest("data", 0, LEAVES, index))
    given = [Chunk("data", 0, LEAVES, 1), Chunk("data", 0, LEAVES, 0)]
    assert shelf.ports.messages() == [*given, refusal("data", 0, LEAVES)]
    assert shelf.ports.payloads == [b"leaf", b"", b""]
    assert shelf.served_bytes == 4


async def test_a_large_file_is_served_in_chunks_after_the_list_of_their_digests(
    tmp_path: Path, shelf: AskedShelf
) -> None:
    path, rest = tmp_path / "state", b"the rest"
    path.write_bytes(bytes(CHUNK_BYTES) + rest)
    blob = blob_of_file("state", 0, 5, path)
    shelf.put(blob, path, temporary=False)
    for index in (None, 0, 1, 2):
        await shelf.request(ASKER, ChunkRequest("state", 0, 5, index))
    assert shelf.ports.payloads == [blob.listed, bytes(CHUNK_BYTES), rest, b""]
    assert shelf.ports.messages()[3] == refusal("state", 0, 5)
    assert shelf.served_bytes == len(blob.listed) + CHUNK_BYTES + len(rest)
    shelf.ports.forget()
    await shelf.request(ASKER, ChunkRequest("state", 0, 6, 0))
    assert shelf.ports.messages() == [refusal("state", 0, 6)]


def test_a_file_that_is_larger_than_any_blob_is_none(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "MAX_BLOB_BYTES", 7)
    assert blob_of_file("state", 0, 5, path).offer.size_bytes == 7
    monkeypatch.setattr(blobs, "MAX_BLOB_BYTES", 6)
    with pytest.raises(ValueError, match="larger than 6 bytes"):
        blob_of_file("state", 0, 5, path)
