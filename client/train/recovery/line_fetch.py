"""Fetches the state of another line of the run, for which ours may be given up.

Our seats go on meanwhile. A copy counts if all of it is verified and its hash is the one that the
line's members name in their signed records; then it waits beside our checkpoints, under a temporary
name, until the machine of ``protocol.recovery`` decides (``History``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from client.compute.checkpoint import examine
from client.compute.errors import CheckpointError, CheckpointUnreadable
from client.store.checkpoints import CheckpointFolder
from client.train.ports import Copied, Ports
from client.train.transfer.blobs import Download, DownloadFailed
from client.train.transfer.inventory import checked
from client.train.transfer.state_size import is_plausible
from protocol.effects import Explain, Penalise
from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.recovery.machine import FetchLine
from protocol.recovery.stored import Copy
from protocol.transfer.blob import Blob
from protocol.wire.messages import BlobOffer, BlobQuery

ANSWER_S = 20.0
"""Seconds within which a donor offers the copy."""
IDLE_S = 60.0
"""Seconds without a chunk after which it is not had."""


@dataclass(frozen=True, slots=True)
class FetchedCopy:
    """A verified copy that has no place yet."""

    path: Path
    blob: Blob


def discard(copies: Iterable[FetchedCopy]) -> None:
    """Remove copies that have no place."""
    for copy in copies:
        with suppress(OSError):
            copy.path.unlink(missing_ok=True)


class LineFetch:
    """See the module's docstring; the owner passes it what peers send of blobs."""

    def __init__(
        self, ports: Ports, manifest: Manifest, swarm: str, folder: CheckpointFolder
    ) -> None:
        self._ports, self._manifest, self._swarm, self._folder = ports, manifest, swarm, folder
        self._download: Download | None = None
        self._donors: tuple[PeerId, ...] = ()

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

    async def fetch(self, wanted: FetchLine) -> dict[Copy, FetchedCopy] | None:
        """Fetch all of these copies; None: one cannot be had, or not in time, or is not what was
        named."""
        fetched = dict[Copy, FetchedCopy]()
        self._donors = wanted.donors
        try:
            with trio.move_on_after(wanted.within_s) as limit:
                for copy in wanted.copies:
                    fetched[copy] = await self._fetch(copy)
            if limit.cancelled_caught:
                raise DownloadFailed(f"it did not come within {wanted.within_s:.0f} s")
        except (DownloadFailed, CheckpointError, OSError) as error:
            discard(fetched.values())
            words = f"the state of the other line of the run cannot be had: {error}"
            self._ports.perform(Explain("transfer", words, "warning"))
            return None
        return fetched

    async def _fetch(self, copy: Copy) -> FetchedCopy:
        path = self._folder.folder / f".stage-{copy.stage}-v{copy.version}.line.tmp"
        try:
            return FetchedCopy(path, await self._download_to(path, copy))
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    async def _download_to(self, path: Path, copy: Copy) -> Blob:
        query = BlobQuery("state", copy.stage, copy.version)
        download = self._download = Download(self._ports, query, self._donors, path)
        try:
            await download.run(IDLE_S, ANSWER_S)
        finally:
            self._download = None
        try:
            return await trio.to_thread.run_sync(self._verified, path, copy)
        except CheckpointUnreadable:
            raise
        except CheckpointError:
            for source in sorted(download.sources):
                self._ports.perform(Penalise(source, "checkpoint-of-wrong-state", 20))
            raise

    def _verified(self, path: Path, copy: Copy) -> Blob:
        """Return the file as a blob, once it is safely on the disk.

        Raises:
            CheckpointError: it is damaged, or another state.
        """
        info, digests = examine(path)
        checked(info, self._swarm, self._manifest.stage_count)
        found = (info.stage, info.version, info.hash)
        if found != (copy.stage, copy.version, copy.hash.hex()):
            raise CheckpointError("its hash differs from the one that was named")
        with path.open("rb") as file:
            os.fsync(file.fileno())
        return Blob.of("state", copy.stage, copy.version, info.size_bytes, digests)
