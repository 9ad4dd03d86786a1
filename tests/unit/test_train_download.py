"""A download over a slow line takes as long as it takes, and ends when nothing comes any more."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from protocol_examples import peer
from trio.testing import MockClock

from client.train.blobs import Download, DownloadFailed, offer_of_file
from protocol.effects import Effect
from protocol.ids import PeerId
from protocol.limits import CHUNK_BYTES
from protocol.wire.messages import BlobQuery, Chunk, ChunkRequest, Message

DONOR = peer(1)
CHUNK_S, IDLE_S = 20.0, 25.0
QUERY = BlobQuery("state", 0, 5)


class SlowDonor:
    """The hub of the downloader, and the donor that gets what it sends: a chunk every 20 s."""

    def __init__(self, source: Path, serves: int) -> None:
        self.download: Download
        self.asked_for: list[int] = []
        self._offer = offer_of_file("state", 0, 5, source)
        self._data, self._serves = source.read_bytes(), serves
        self._send, self._asked = trio.open_memory_channel[int](64)
        self._queried = trio.Event()

    def now(self) -> float:
        return trio.current_time()

    def send(self, peer: PeerId, message: Message, payload: bytes = b"") -> None:
        if isinstance(message, BlobQuery):
            self._queried.set()
        if isinstance(message, ChunkRequest):
            self.asked_for.append(message.index)
            self._send.send_nowait(message.index)

    def perform(self, effect: Effect) -> None:
        raise AssertionError(effect)

    async def run(self) -> None:
        await self._queried.wait()
        self.download.receive(DONOR, self._offer, b"")
        for _ in range(self._serves):
            index = await self._asked.receive()
            await trio.sleep(CHUNK_S)
            data = self._data[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
            self.download.receive(DONOR, Chunk("state", 0, 5, index), data)


@pytest.mark.parametrize("serves", [6, 3])
async def test_slow_is_not_silent(tmp_path: Path, autojump_clock: MockClock, serves: int) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(5 * CHUNK_BYTES + 7))
    donor = SlowDonor(source, serves)
    donor.download = Download(donor, QUERY, [DONOR], target)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(donor.run)
        fetch = partial(donor.download.run, IDLE_S)
        if serves == 6:
            assert (await fetch()).read_bytes() == source.read_bytes()
            assert trio.current_time() >= 6 * CHUNK_S
        else:
            with pytest.raises(DownloadFailed, match="3 of 6 chunks"):
                await fetch()
            assert trio.current_time() <= 3 * CHUNK_S + IDLE_S + 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("resumable", [True, False])
async def test_a_later_attempt_goes_on_where_the_first_one_ended(
    tmp_path: Path, autojump_clock: MockClock, *, resumable: bool
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(5 * CHUNK_BYTES + 7))

    async def attempt(serves: int) -> SlowDonor:
        donor = SlowDonor(source, serves)
        donor.download = Download(donor, QUERY, [DONOR], target, resumable=resumable)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(donor.run)
            with suppress(DownloadFailed):
                await donor.download.run(IDLE_S)
            nursery.cancel_scope.cancel()
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
