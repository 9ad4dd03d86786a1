"""Downloads copies of checkpoints that peers name in their records, one at a time.

A copy counts if all of it is verified and its hash is the one that was named.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trio

from client.compute.checkpoint import CheckpointInfo, examine
from client.compute.errors import CheckpointError, CheckpointUnreadable
from client.train.transfer.blobs import Downloads
from client.train.transfer.inventory import checked
from protocol.ids import PeerId
from protocol.recovery.stored import Copy
from protocol.transfer.blob import Blob
from protocol.transfer.fetch import WINDOW
from protocol.wire.messages import BlobQuery

ANSWER_S = 20.0
"""Seconds within which a donor offers the copy."""


class FalseCopy(CheckpointError):
    """It is damaged, or another one than was named; ``sources`` have served it."""

    def __init__(self, words: str, sources: frozenset[PeerId]) -> None:
        super().__init__(words)
        self.sources = sources


async def fetch_copy(
    downloads: Downloads, copy: Copy, donors: Sequence[PeerId], path: Path, window: int = WINDOW
) -> Blob:
    """Fetch a copy into a file; without one nothing is left there.

    Args:
        downloads: of our swarm.
        copy: what is wanted.
        donors: who may have it.
        path: of the file.
        window: chunks asked for at a time of each donor.

    Raises:
        DownloadFailed: it cannot be had.
        FalseCopy: it is damaged, or another one.
        CheckpointUnreadable: it cannot be read here.
        OSError: the same.
    """
    query = BlobQuery("state", copy.stage, copy.version)
    try:
        sources = await downloads.fetch(query, donors, path, begins_s=ANSWER_S, window=window)
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
