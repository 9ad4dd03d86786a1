"""Fetches the state of another line of the run, for which ours may be given up.

Our seats go on meanwhile. A copy counts if all of it is verified and its hash is the one that the
line's members name in their signed records; then it waits beside our checkpoints, under a temporary
name, until the machine of ``protocol.recovery`` decides (``History``).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from client.compute.errors import CheckpointError, CheckpointUnreadable
from client.store.checkpoints import CheckpointFolder
from client.train.ports import Ports
from client.train.recovery.copies import CopyFetch
from client.train.transfer.blobs import DownloadFailed
from protocol.effects import Explain, Penalise
from protocol.manifest import Manifest
from protocol.recovery.effects import FetchLine
from protocol.recovery.stored import Copy
from protocol.transfer.blob import Blob


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
    """See the module's docstring; the owner passes to ``copies`` what peers send of blobs."""

    def __init__(
        self, ports: Ports, manifest: Manifest, swarm: str, folder: CheckpointFolder
    ) -> None:
        self._ports, self._folder = ports, folder
        self.copies = CopyFetch(ports, manifest, swarm)

    async def fetch(self, wanted: FetchLine) -> dict[Copy, FetchedCopy] | None:
        """Fetch all of these copies; None: one cannot be had, or not in time, or is not what was
        named."""
        fetched = dict[Copy, FetchedCopy]()
        try:
            with trio.move_on_after(wanted.within_s) as limit:
                for copy in wanted.copies:
                    fetched[copy] = await self._fetch(copy, wanted)
            if limit.cancelled_caught:
                raise DownloadFailed(f"it did not come within {wanted.within_s:.0f} s")
        except (DownloadFailed, CheckpointError, OSError) as error:
            discard(fetched.values())
            words = f"the state of the other line of the run cannot be had: {error}"
            self._ports.perform(Explain("transfer", words, "warning"))
            return None
        return fetched

    async def _fetch(self, copy: Copy, wanted: FetchLine) -> FetchedCopy:
        path = self._folder.folder / f".stage-{copy.stage}-v{copy.version}.line.tmp"
        try:
            return FetchedCopy(path, await self.copies.fetch(copy, wanted.donors, path))
        except CheckpointUnreadable:
            raise
        except CheckpointError:
            for source in sorted(self.copies.sources):
                self._ports.perform(Penalise(source, "checkpoint-of-wrong-state", 20))
            raise
