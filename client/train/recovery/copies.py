"""Downloads copies of checkpoints that peers name in their records, one at a time.

A copy counts if all of it is verified and its hash is the one that was named. The owner says from
whom, and passes on what peers send of blobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trio

from client.compute.checkpoint import CheckpointInfo, examine
from client.compute.errors import CheckpointError
from client.train.ports import Copied, Ports
from client.train.transfer.blobs import Download
from client.train.transfer.inventory import checked
from client.train.transfer.state_size import is_plausible
from protocol.effects import Penalise
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.recovery.stored import Copy
from protocol.transfer.blob import Blob
from protocol.transfer.fetch import WINDOW
from protocol.wire.messages import BlobOffer, BlobQuery

ANSWER_S = 20.0
"""Seconds within which a donor offers the copy."""
IDLE_S = 60.0
"""Seconds without a chunk after which it is not had."""


class CopyFetch:
    """See the module's docstring.

    Args:
        window: chunks asked for at a time of each donor.
    """

    def __init__(self, ports: Ports, manifest: Manifest, swarm: str, window: int = WINDOW) -> None:
        self._ports, self._manifest, self._swarm, self._window = ports, manifest, swarm, window
        self._download: Download | None = None
        self._donors: frozenset[PeerId] = frozenset()
        self.sources: frozenset[PeerId] = frozenset()
        """Who has served a chunk of the last one."""

    def receive(self, peer: PeerId, message: Copied, payload: bytes) -> bool:
        """Handle a message about the copy that is being fetched; False: it concerns another."""
        if self._download is None or peer not in self._donors:
            return False
        wanted = self._download.query
        asked = (wanted.kind, wanted.stage, wanted.version)
        if (message.kind, message.stage, message.version) != asked:
            return False
        if isinstance(message, BlobOffer) and not is_plausible(self._manifest, message):
            self._ports.perform(Penalise(peer, "checkpoint-of-wrong-size", 20))
        else:
            self._download.receive(peer, message, payload)
        return True

    def peer_lost(self, peer: PeerId) -> None:
        """A donor may have been lost."""
        if self._download is not None:
            self._download.lost(peer)

    async def fetch(self, copy: Copy, donors: Sequence[PeerId], path: Path) -> Blob:
        """Fetch a copy into a file; without one nothing is left there.

        Args:
            copy: what is wanted.
            donors: who may have it.
            path: of the file.

        Raises:
            DownloadFailed: it cannot be had.
            CheckpointError: it is damaged, or another one.
            OSError: it cannot be read here.
        """
        query = BlobQuery("state", copy.stage, copy.version)
        download = Download(self._ports, query, donors, path, self._window)
        self._download, self._donors = download, frozenset(donors)
        try:
            await download.run(IDLE_S, ANSWER_S)
            info, digests = await trio.to_thread.run_sync(examine, path)
            self._check(info, copy)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            self._download, self.sources = None, download.sources
        return Blob.of("state", copy.stage, copy.version, info.size_bytes, digests)

    def _check(self, info: CheckpointInfo, copy: Copy) -> None:
        checked(info, self._swarm, self._manifest.stage_count)
        if (info.stage, info.version) != (copy.stage, copy.version):
            raise CheckpointError(f"it is stage {info.stage} at version {info.version}")
        if info.hash != copy.hash.hex():
            raise CheckpointError("its hash differs from the one that was named")
