"""The state of another line is fetched in a bounded time, however its donor sends."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from client.train.recovery.copies import fetch_line
from client.train.transfer import blobs
from client.train.transfer.blobs import Downloads
from client.train.workers.tasks import payload_digest
from protocol.ids import PeerId, SwarmId
from protocol.limits import CHUNK_BYTES
from protocol.recovery.choice import SEED
from protocol.recovery.effects import FetchLine
from protocol.recovery.stored import Copy
from protocol.transfer.blob import Blob
from protocol.wire.messages import BlobQuery, Chunk, ChunkRequest, Message
from tests.support.protocol_examples import SWARM, manifest, peer
from tests.support.recording_ports import RecordingPorts

DONOR, CHUNK_S, CHUNKS, VERSION = peer(1), 25.0, 40, 5
BYTES = bytes(CHUNK_BYTES)


class DrippingDonor(RecordingPorts):
    """The ports of the one who fetches, and a donor that sends a chunk every 25 s."""

    def __init__(self) -> None:
        super().__init__()
        self.downloads = Downloads(self, manifest(), SwarmId(SWARM))
        digests = [payload_digest(BYTES)] * CHUNKS
        self._blob = Blob.of("state", 0, VERSION, CHUNKS * CHUNK_BYTES, digests)
        self._send, self._asked = trio.open_memory_channel[Message](64)

    def now(self) -> float:
        return trio.current_time()

    def send(self, peer: PeerId, message: Message, payload: bytes = b"") -> None:
        self._send.send_nowait(message)

    async def run(self) -> None:
        async for message in self._asked:
            match message:
                case BlobQuery():
                    self.downloads.receive(DONOR, self._blob.offer)
                case ChunkRequest(index=None):
                    listed = Chunk("state", 0, VERSION, None)
                    self.downloads.receive(DONOR, listed, self._blob.listed)
                case ChunkRequest(index=index):
                    await trio.sleep(CHUNK_S)
                    self.downloads.receive(DONOR, Chunk("state", 0, VERSION, index), BYTES)


async def test_a_donor_that_drips_does_not_hold_up_the_next_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "is_plausible", lambda manifest, offer: True)
    donor = DrippingDonor()
    wanted = FetchLine(SEED, (Copy(0, VERSION, bytes(32)),), (DONOR,), within_s=90.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(donor.run)
        assert await fetch_line(donor.downloads, tmp_path, wanted) == {}
        nursery.cancel_scope.cancel()
    assert trio.current_time() == pytest.approx(90.0, abs=1.0)
    assert "did not come within 90 s" in donor.told()[-1].words
    assert list(tmp_path.iterdir()) == [], "what is of no use takes no room"
