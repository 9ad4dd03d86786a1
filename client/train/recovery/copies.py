"""Downloads copies of checkpoints that peers name in their records, one at a time.

A copy counts if all of it is verified and its hash is the one that was named. The state of another
line of the run, for which ours may be given up, is fetched while our seats go on; it waits beside
our checkpoints, under temporary names, until the machine of ``protocol.recovery`` decides
(``History``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from client.compute.checkpoint import CheckpointInfo, examine
from client.compute.errors import CheckpointError, CheckpointUnreadable
from client.train.transfer.blobs import DownloadFailed, Downloads
from client.train.transfer.inventory import checked
from protocol.effects import Explain, Penalise
from protocol.ids import PeerId
from protocol.recovery.effects import FetchLine
from protocol.recovery.stored import Copy
from protocol.transfer.blob import Blob
from protocol.transfer.fetch import WINDOW
from protocol.wire.messages import BlobQuery

ANSWER_S = 20.0
"""Seconds within which a donor offers a copy, unless somebody cannot wait so long."""


class FalseCopy(CheckpointError):
    """It is damaged, or another one than was named; ``sources`` have served it."""

    def __init__(self, words: str, sources: frozenset[PeerId]) -> None:
        super().__init__(words)
        self.sources = sources


async def fetch_copy(
    downloads: Downloads,
    copy: Copy,
    donors: Sequence[PeerId],
    path: Path,
    window: int = WINDOW,
    *,
    answer_s: float = ANSWER_S,
) -> Blob:
    """Fetch a copy into a file; without one nothing is left there.

    Args:
        downloads: of our swarm.
        copy: what is wanted.
        donors: who may have it.
        path: of the file.
        window: chunks asked for at a time of each donor.
        answer_s: seconds within which one of them must offer it.

    Raises:
        DownloadFailed: it cannot be had.
        FalseCopy: it is damaged, or another one.
        CheckpointUnreadable: it cannot be read here.
        OSError: the same.
    """
    query = BlobQuery("state", copy.stage, copy.version)
    try:
        sources = await downloads.fetch(query, donors, path, begins_s=answer_s, window=window)
        try:
            info, digests = await trio.to_thread.run_sync(examine, path)
            checked(info, downloads.swarm, downloads.manifest.stage_count)
            _check(info, copy)
        except CheckpointUnreadable:
            raise
        except CheckpointError as error:
            raise FalseCopy(str(error), sources) from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Blob.of("state", copy.stage, copy.version, info.size_bytes, digests)


def _check(info: CheckpointInfo, copy: Copy) -> None:
    if (info.stage, info.version) != (copy.stage, copy.version):
        raise CheckpointError(f"it is stage {info.stage} at version {info.version}")
    if info.hash != copy.hash.hex():
        raise CheckpointError("its hash differs from the one that was named")


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
