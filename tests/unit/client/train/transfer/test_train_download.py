"""A download over a slow line takes as long as it takes, and ends when nothing comes any more."""

import errno
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from client.train.recovery.history import fetch_line
from client.train.transfer.blobs import (
    DiskFailed,
    Download,
    DownloadFailed,
    Downloads,
    Filed,
    filed,
)
from protocol.effects import Penalise
from protocol.ids import PeerId
from protocol.limits import CHUNK_BYTES
from protocol.recovery.choice import SEED
from protocol.recovery.effects import FetchLine
from protocol.recovery.stored import Copy
from protocol.wire.messages import Chunk, ChunkRequest, Message
from tests.support.protocol_examples import peer
from tests.support.recording_ports import RecordingPorts

DONOR, LIAR = peer(1), peer(2)
CHUNK_S, IDLE_S = 20.0, 25.0


class SlowDonor(RecordingPorts):
    """The ports of the downloader, and the donor that gets what it sends: a chunk every 20 s."""

    def __init__(self, source: Path, serves: int) -> None:
        super().__init__()
        self.time = None
        self.download: Download | Downloads
        self.path = Path()
        self.asked_for: list[int] = []
        self.filed = filed(source)
        self._data, self._serves = source.read_bytes(), serves
        self._send, self._asked = trio.open_memory_channel[int](64)
        self.queried, self.writes_s = trio.Event(), 0.0

    def send(self, peer: PeerId, message: Message, payload: bytes = b"") -> None:
        assert isinstance(message, ChunkRequest)
        if message.index is None:
            self.queried.set()
        else:
            self.asked_for.append(message.index)
            self._send.send_nowait(message.index)

    async def run(self) -> None:
        await self.queried.wait()
        await trio.sleep(self.writes_s)
        root = self.filed.blob.root
        self.download.receive(DONOR, Chunk(root, None), self.filed.listed)
        for _ in range(self._serves):
            index = await self._asked.receive()
            await trio.sleep(CHUNK_S)
            data = self._data[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
            self.download.receive(DONOR, Chunk(root, index), data)


async def fetch(donor: SlowDonor, begins_s: float = IDLE_S) -> Path:
    """Download what it has, which it serves to the end; nobody is blamed."""
    failure: DownloadFailed | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(donor.run)
        try:
            assert await donor.download.run(IDLE_S, begins_s=begins_s) == donor.filed
        except DownloadFailed as error:  # raised within the nursery it would be one of a group
            failure = error
        nursery.cancel_scope.cancel()
    assert donor.done == []
    if failure is not None:
        raise failure
    return donor.path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(os.urandom(5 * CHUNK_BYTES + 7))
    return path


def downloader(
    source: Path, target: Path, *donors: PeerId, serves: int = 6, resumable: bool = False
) -> SlowDonor:
    donor = SlowDonor(source, serves)
    donor.path = target
    blob = donor.filed.blob
    donor.download = Download(donor, blob, donors or [DONOR], target, resumable=resumable)
    return donor


async def test_slow_is_not_silent(source: Path, tmp_path: Path) -> None:
    donor = downloader(source, tmp_path / "target")
    assert (await fetch(donor)).read_bytes() == source.read_bytes()
    began = trio.current_time()
    assert began >= 6 * CHUNK_S
    with pytest.raises(DownloadFailed, match="3 of 6 chunks came; nothing came for 25 s"):
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
        donor.download = Download(donor, donor.filed.blob, [DONOR], target, resumable=resumable)
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


@pytest.mark.parametrize("resumable", [True, False])
async def test_a_disk_that_fills_up_ends_it_in_clear_words_and_nobody_is_blamed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, resumable: bool
) -> None:
    target = tmp_path / "below" / "target"
    donor, pwrite = downloader(source, target, resumable=resumable), os.pwrite

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
    assert "6.3 MB more are needed for target" in words
    assert str(tmp_path / "below") in words
    assert len(list((tmp_path / "below").iterdir())) == resumable
    needed_bytes = donor.filed.blob.size_bytes - resumable * 2 * CHUNK_BYTES
    assert caught.value.needed_bytes == pytest.approx(needed_bytes, abs=64 * 1024)


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


async def test_who_gives_the_list_early_does_not_shorten_the_wait_for_who_still_writes(
    source: Path, tmp_path: Path
) -> None:
    donor = downloader(source, tmp_path / "target", LIAR, DONOR)
    donor.writes_s = 60.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(donor.run)

        async def fall_silent() -> None:
            await donor.queried.wait()
            donor.download.receive(LIAR, Chunk(donor.filed.blob.root, None), donor.filed.listed)

        nursery.start_soon(fall_silent)
        await donor.download.run(IDLE_S, begins_s=100.0)
        nursery.cancel_scope.cancel()
    assert donor.path.read_bytes() == source.read_bytes()


async def test_a_header_stands_before_what_is_fetched(source: Path, tmp_path: Path) -> None:
    for resumable in (False, True):
        donor, target = SlowDonor(source, serves=6), tmp_path / "target"
        donor.download = Download(
            donor, donor.filed.blob, [DONOR], target, header=b"header", resumable=resumable
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(donor.run)
            found = await donor.download.run(IDLE_S, IDLE_S)
            nursery.cancel_scope.cancel()
        assert found == replace(donor.filed, start=6)
        assert target.read_bytes() == b"header" + source.read_bytes()
        target.rename(target.with_name(".target.part.tmp"))
    assert donor.asked_for == [], "what is there is not fetched again"


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


@pytest.mark.parametrize("tells", [True, False])
async def test_a_donor_that_drips_or_lies_does_not_hold_up_the_next_line(
    nursery: trio.Nursery, source: Path, tmp_path: Path, *, tells: bool
) -> None:
    """The state of another line of the run is fetched in a bounded time, however it is sent."""
    donor, folder, within_s = SlowDonor(source, serves=6), tmp_path / "line", 90.0
    folder.mkdir()
    downloads = donor.download = Downloads(donor)
    blob = donor.filed.blob
    downloads.state = lambda stage, version, root: blob  # type: ignore[method-assign]
    wanted = FetchLine(SEED, (Copy(0, 5, blob.root),), (DONOR,), within_s)
    if not tells:
        donor.filed = replace(donor.filed, listed=bytes(len(donor.filed.listed)))
    began = trio.current_time()
    nursery.start_soon(donor.run)
    assert await fetch_line(downloads, folder, wanted) == {}
    assert trio.current_time() - began == pytest.approx(within_s if tells else 0.0, abs=1.0)
    words = "did not come within 90 s" if tells else "0 of 6 chunks came; no donor is left"
    assert words in donor.told()[-1].words
    blamed = [one.peer for one in donor.done if isinstance(one, Penalise)]
    assert blamed == ([] if tells else [DONOR])
    assert list(folder.iterdir()) == [], "what is of no use takes no room"


# --- who gets what is sent ----------------------------------------------------------------------


async def test_what_is_fetched_takes_messages_only_meanwhile(tmp_path: Path) -> None:
    ports = RecordingPorts()
    downloads = Downloads(cast(Any, ports))
    small = tmp_path / "small"
    small.write_bytes(b"x" * 300)
    file, found = filed(small), list[Filed]()
    root = file.blob.root

    async def fetch_it() -> None:
        donors, target = [DONOR, LIAR], tmp_path / "target"
        found.append(await downloads.fetch(file.blob, donors, target, begins_s=IDLE_S))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch_it)
        await trio.testing.wait_all_tasks_blocked()
        assert ports.sent == [(donor, ChunkRequest(root, None)) for donor in (DONOR, LIAR)]
        downloads.receive(DONOR, Chunk(bytes(32), None), file.listed)
        downloads.lost(LIAR)
        downloads.receive(DONOR, Chunk(root, None), file.listed)
        downloads.receive(DONOR, Chunk(root, 0), small.read_bytes())
    assert found == [file]
    assert (tmp_path / "target").read_bytes() == small.read_bytes()
    assert downloads.takers == []
