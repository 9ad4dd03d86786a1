"""A download over a slow line takes as long as it takes, and ends when nothing comes any more."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from client.train.ports import Copied
from client.train.recovery.copies import fetch_line
from client.train.transfer import blobs
from client.train.transfer.blobs import (
    DiskFailed,
    Download,
    DownloadFailed,
    Downloads,
    blob_of_file,
)
from client.train.transfer.data_search import TOKENIZER
from client.train.transfer.state_size import data_bytes
from model_zoo.specs.data import DataSpec
from model_zoo.specs.tensor_headers import MAX_HEADER_BYTES
from model_zoo.specs.tokens import TokenizerSpec
from protocol.effects import Penalise
from protocol.ids import PeerId, SwarmId
from protocol.limits import CHUNK_BYTES
from protocol.manifest import StageStart
from protocol.recovery.choice import SEED
from protocol.recovery.effects import FetchLine
from protocol.recovery.stored import Copy
from protocol.transfer.blob import refusal
from protocol.transfer.leaves import LEAVES, LIE_POINTS
from protocol.wire.messages import BlobOffer, BlobQuery, Chunk, ChunkRequest, Message
from tests.support.protocol_examples import SWARM, manifest, peer
from tests.support.recording_ports import RecordingPorts
from tests.support.virtual_time import at_once

DONOR, LIAR = peer(1), peer(2)
CHUNK_S, IDLE_S = 20.0, 25.0
QUERY = BlobQuery("state", 0, 5)


class SlowDonor(RecordingPorts):
    """The ports of the downloader, and the donor that gets what it sends: a chunk every 20 s."""

    def __init__(self, source: Path, serves: int) -> None:
        super().__init__()
        self.download: Download | Downloads
        self.asked_for: list[int] = []
        self._blob = blob_of_file("state", 0, 5, source)
        self._data, self._serves = source.read_bytes(), serves
        self._send, self._asked = trio.open_memory_channel[int](64)
        self.queried, self.writes_s = trio.Event(), 0.0

    def now(self) -> float:
        return trio.current_time()

    def send(self, peer: PeerId, message: Message, payload: bytes = b"") -> None:
        if isinstance(message, BlobQuery):
            self.queried.set()
        if isinstance(message, ChunkRequest) and message.index is None:
            listed = Chunk("state", 0, 5, None)
            self.download.receive(DONOR, listed, self._blob.listed)
        elif isinstance(message, ChunkRequest) and message.index is not None:
            self.asked_for.append(message.index)
            self._send.send_nowait(message.index)

    async def run(self) -> None:
        await self.queried.wait()
        await trio.sleep(self.writes_s)
        self.download.receive(DONOR, self._blob.offer, b"")
        for _ in range(self._serves):
            index = await self._asked.receive()
            await trio.sleep(CHUNK_S)
            data = self._data[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
            self.download.receive(DONOR, Chunk("state", 0, 5, index), data)


async def fetch(donor: SlowDonor, begins_s: float | None = None) -> Path:
    """Download what it has, which it serves to the end; nobody is blamed."""
    failure: DownloadFailed | None = None
    path = Path()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(donor.run)
        try:
            path = await donor.download.run(IDLE_S, begins_s=begins_s)
        except DownloadFailed as error:  # raised within the nursery it would be one of a group
            failure = error
        nursery.cancel_scope.cancel()
    assert donor.done == []
    if failure is not None:
        raise failure
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(os.urandom(5 * CHUNK_BYTES + 7))
    return path


def downloader(source: Path, target: Path, *donors: PeerId, serves: int = 6) -> SlowDonor:
    donor = SlowDonor(source, serves)
    donor.download = Download(donor, QUERY, donors or [DONOR], target)
    return donor


async def test_slow_is_not_silent(source: Path, tmp_path: Path) -> None:
    donor = downloader(source, tmp_path / "target")
    assert (await fetch(donor)).read_bytes() == source.read_bytes()
    began = trio.current_time()
    assert began >= 6 * CHUNK_S
    with pytest.raises(DownloadFailed, match="3 of 6 chunks"):
        await fetch(downloader(source, tmp_path / "another", serves=3))
    assert trio.current_time() - began <= 3 * CHUNK_S + IDLE_S + 1


@pytest.mark.parametrize("writes_s", [90.0, 110.0])
async def test_a_donor_may_take_long_to_write_what_it_gives(
    source: Path, tmp_path: Path, writes_s: float
) -> None:
    donor = downloader(source, tmp_path / "target")
    donor.writes_s = writes_s
    fetched: list[Path] = []
    with suppress(DownloadFailed):
        fetched.append(await fetch(donor, begins_s=100.0))
    assert bool(fetched) is (writes_s < 100)


@pytest.mark.parametrize("resumable", [True, False])
async def test_a_later_attempt_goes_on_where_the_first_one_ended(
    source: Path, tmp_path: Path, *, resumable: bool
) -> None:
    target = tmp_path / "target"

    async def attempt(serves: int) -> SlowDonor:
        donor = SlowDonor(source, serves)
        donor.download = Download(donor, QUERY, [DONOR], target, resumable=resumable)
        with suppress(DownloadFailed):
            await fetch(donor)
        return donor

    await attempt(3)
    assert not target.exists()
    left = [path for path in tmp_path.iterdir() if path != source]
    assert len(left) == resumable
    for path in left:  # a machine that lost its power: one of the three was not on the disk yet
        with path.open("r+b") as file:
            file.write(bytes(100))
    second = await attempt(6)
    assert target.read_bytes() == source.read_bytes()
    assert sorted(second.asked_for) == ([0, 3, 4, 5] if resumable else [0, 1, 2, 3, 4, 5])
    assert sorted(tmp_path.iterdir()) == [source, target]


async def test_a_disk_that_fills_up_ends_it_in_clear_words_and_nobody_is_blamed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    donor, pwrite = downloader(source, tmp_path / "below" / "target"), os.pwrite

    def full(descriptor: int, data: memoryview, place: int) -> int:
        if place >= 2 * CHUNK_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data, place)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskFailed) as caught:
        await fetch(donor)
    assert trio.current_time() < 4 * CHUNK_S, "it does not wait for what it cannot write"
    words = str(caught.value)
    assert "No space left" in words
    assert "8.4 MB more are needed for target" in words
    assert str(tmp_path / "below") in words
    assert list((tmp_path / "below").iterdir()) == []


async def test_what_does_not_fit_is_not_begun(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    donor = downloader(source, tmp_path / "target")
    usage = shutil.disk_usage(tmp_path)._replace(free=3_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DiskFailed, match=r"10\.5 MB more are needed for target, 3\.0 MB are free"):
        await fetch(donor)
    assert donor.asked_for == []
    assert list(tmp_path.iterdir()) == [source]


async def test_who_offers_more_than_fits_does_not_keep_others_from_serving(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    donor = downloader(source, tmp_path / "target", LIAR, DONOR)
    usage = shutil.disk_usage(tmp_path)._replace(free=20_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    async def lie() -> None:
        await donor.queried.wait()
        absurd = BlobOffer("state", 0, 5, 1000 * CHUNK_BYTES, bytes(32))
        donor.download.receive(LIAR, absurd, b"")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lie)
        assert (await fetch(donor)).read_bytes() == source.read_bytes()


async def test_a_file_removed_meanwhile_is_never_completed_with_zeros(
    source: Path, tmp_path: Path
) -> None:
    donor = downloader(source, tmp_path / "below" / "target")

    async def prune() -> None:
        await trio.sleep(2.5 * CHUNK_S)
        for path in (tmp_path / "below").iterdir():
            path.unlink()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(prune)
        with pytest.raises(DownloadFailed, match="was removed"):
            await fetch(donor)
    assert not (tmp_path / "below" / "target").exists()


async def test_a_folder_that_cannot_be_made_is_a_download_that_failed(source: Path) -> None:
    with pytest.raises(DiskFailed, match="cannot be written"):
        await fetch(downloader(source, source / "below" / "target"))


@pytest.mark.parametrize(
    ("within_s", "words", "blamed"),
    [(90.0, "did not come within 90 s", []), (900.0, "not a checkpoint", [DONOR])],
)
async def test_a_donor_that_drips_or_gives_a_false_state_does_not_hold_up_the_next_line(
    nursery: trio.Nursery,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    within_s: float,
    words: str,
    blamed: list[PeerId],
) -> None:
    """The state of another line of the run is fetched in a bounded time, however it is sent."""
    monkeypatch.setattr(blobs, "is_plausible", lambda manifest, offer: True)
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    donor, folder = SlowDonor(source, serves=6), tmp_path / "line"
    folder.mkdir()
    downloads = donor.download = Downloads(donor, manifest(), SwarmId(SWARM))
    wanted = FetchLine(SEED, (Copy(0, 5, bytes(32)),), (DONOR,), within_s)
    began = trio.current_time()
    nursery.start_soon(donor.run)
    assert await fetch_line(downloads, folder, wanted) == {}
    took_s = 6 * CHUNK_S if blamed else within_s
    assert trio.current_time() - began == pytest.approx(took_s, abs=1.0)
    assert words in donor.told()[-1].words
    assert [one.peer for one in donor.done if isinstance(one, Penalise)] == blamed
    assert list(folder.iterdir()) == [], "what is of no use takes no room"


# --- who gets what is sent ----------------------------------------------------------------------

RUN = replace(
    manifest(stages=2),
    data=DataSpec("book", 10_000, "0" * 64, TokenizerSpec("1" * 64, 300, 256, "0.23.3")),
    start=(StageStart(500, "2" * 64), StageStart(700, "3" * 64)),
)


class Waiting:
    """Waits for a blob, or for another one."""

    def __init__(self, *, concerned: bool = True) -> None:
        self._concerned, self.taken, self.gone = concerned, list[Copied](), list[PeerId]()

    def concerns(self, message: Copied) -> bool:
        return self._concerned

    def receive(self, sender: PeerId, message: Copied, payload: bytes) -> None:
        self.taken.append(message)

    def lost(self, peer: PeerId) -> None:
        self.gone.append(peer)


@pytest.mark.parametrize(
    ("offer", "reason", "points"),
    [
        (("state", 1, 5, data_bytes(RUN, 1) + 1), "checkpoint-of-wrong-size", 20),
        (("start", 1, 0, 700), "start-of-wrong-size", LIE_POINTS),
        (("data", 0, LEAVES, RUN.data.kept_bytes), "data-of-wrong-size", LIE_POINTS),
        (("data", 0, TOKENIZER, 300), "data-of-wrong-size", LIE_POINTS),
    ],
)
def test_who_offers_what_the_run_does_not_have_lies_and_is_lost_to_those_who_wait(
    offer: tuple[Any, ...], reason: str, points: int
) -> None:
    ports, waiting, other = RecordingPorts(), Waiting(), Waiting(concerned=False)
    downloads = Downloads(cast(Any, ports), RUN, SwarmId(SWARM))
    for taker in (waiting, other):
        downloads.add(taker)
    right = BlobOffer(*offer, bytes(32))
    downloads.receive(DONOR, right)
    assert (waiting.taken, waiting.gone, ports.done) == ([right], [], [])
    for wrong in (offer[3] - 1, offer[3] + MAX_HEADER_BYTES):
        downloads.receive(LIAR, BlobOffer(*offer[:3], wrong, bytes(32)))
    assert waiting.taken == [right]
    assert waiting.gone == [LIAR] * 2
    assert ports.done == [Penalise(LIAR, reason, points)] * 2
    assert (other.taken, other.gone) == ([], [])


def test_an_offer_that_nobody_waits_for_is_not_judged() -> None:
    ports, other = RecordingPorts(), Waiting(concerned=False)
    downloads = Downloads(cast(Any, ports), RUN, SwarmId(SWARM))
    downloads.add(other)
    for stage in (0, 2**15):
        downloads.receive(LIAR, BlobOffer("start", stage, 0, 1, bytes(32)))
    assert ports.done == []
    downloads.lost(LIAR)
    assert other.gone == [LIAR]


async def test_what_is_fetched_takes_messages_only_meanwhile(tmp_path: Path) -> None:
    ports = RecordingPorts()
    downloads = Downloads(cast(Any, ports), RUN, SwarmId(SWARM))
    query, sources = BlobQuery("data", 0, TOKENIZER), list[frozenset[PeerId]]()

    async def fetch_it() -> None:
        sources.append(await downloads.fetch(query, [DONOR, LIAR], tmp_path / "target"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch_it)
        await trio.testing.wait_all_tasks_blocked()
        assert ports.sent == [(DONOR, query), (LIAR, query)]
        (download,) = downloads._takers
        assert download.concerns(refusal("data", 0, TOKENIZER))
        for other in (("data", 0, LEAVES), ("data", 1, TOKENIZER), ("state", 0, TOKENIZER)):
            assert not download.concerns(refusal(*other))  # type: ignore[arg-type]
        small = tmp_path / "small"
        small.write_bytes(b"x" * 300)
        blob = blob_of_file("data", 0, TOKENIZER, small)
        downloads.receive(DONOR, blob.offer)
        downloads.receive(DONOR, Chunk("data", 0, TOKENIZER, None), blob.listed)
        downloads.receive(DONOR, Chunk("data", 0, TOKENIZER, 0), small.read_bytes())
    assert sources == [{DONOR}]
    assert (tmp_path / "target").read_bytes() == small.read_bytes()
    assert downloads._takers == []
