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

from client.compute.errors import CheckpointError
from client.train.recovery.copies import FalseCopy, fetch_copy
from client.train.transfer.blobs import DownloadFailed, Downloads
from protocol.effects import Explain, Penalise
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


async def fetch_line(
    downloads: Downloads, folder: Path, wanted: FetchLine
) -> dict[Copy, FetchedCopy]:
    """Fetch all of these copies into a folder; empty: one cannot be had, or not in time, or is not
    what was named."""
    fetched = dict[Copy, FetchedCopy]()
    try:
        with trio.move_on_after(wanted.within_s) as limit:
            for copy in wanted.copies:
                path = folder / f".stage-{copy.stage}-v{copy.version}.line.tmp"
                blob = await fetch_copy(downloads, copy, wanted.donors, path)
                fetched[copy] = FetchedCopy(path, blob)
        if limit.cancelled_caught:
            raise DownloadFailed(f"it did not come within {wanted.within_s:.0f} s")
    except (DownloadFailed, CheckpointError, OSError) as error:
        if isinstance(error, FalseCopy):
            for source in sorted(error.sources):
                downloads.ports.perform(Penalise(source, "checkpoint-of-wrong-state", 20))
        discard(fetched.values())
        words = f"the state of the other line of the run cannot be had: {error}"
        downloads.ports.perform(Explain("transfer", words, "warning"))
        return {}
    return fetched
