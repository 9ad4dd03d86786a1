"""Downloads the checkpoints of another line that peers name in their records, one at a time.

The hash that was named proves every chunk of a copy as it arrives. The state of another line of the
run, for which ours may be given up, is fetched while our seats go on; it waits beside our
checkpoints, under temporary names, until the machine of ``protocol.recovery`` decides
(``History``).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import trio

from client.train.transfer.blobs import DownloadFailed, Downloads, Filed, unlink
from protocol.effects import Explain
from protocol.recovery.effects import FetchLine
from protocol.recovery.stored import Copy

ANSWER_S = 20.0
"""Seconds within which a donor begins to give a copy."""


@dataclass(frozen=True, slots=True)
class FetchedCopy:
    """A verified copy that has no place yet."""

    path: Path
    filed: Filed


def discard(copies: Iterable[FetchedCopy]) -> None:
    """Remove copies that have no place."""
    for copy in copies:
        unlink(copy.path)


async def fetch_line(
    downloads: Downloads, folder: Path, wanted: FetchLine
) -> dict[Copy, FetchedCopy]:
    """Fetch all of these copies into a folder; empty: one cannot be had, or not in time."""
    fetched = dict[Copy, FetchedCopy]()
    try:
        with trio.move_on_after(wanted.within_s) as limit:
            for copy in wanted.copies:
                path = folder / f".stage-{copy.stage}-v{copy.version}.line.tmp"
                state = downloads.state(copy.stage, copy.version, copy.hash)
                filed = await downloads.fetch(state, wanted.donors, path, begins_s=ANSWER_S)
                fetched[copy] = FetchedCopy(path, filed)
        if limit.cancelled_caught:
            raise DownloadFailed(f"it did not come within {wanted.within_s:.0f} s")
    except DownloadFailed as error:
        discard(fetched.values())
        words = f"the state of the other line of the run cannot be had: {error}"
        downloads.ports.perform(Explain("transfer", words, "warning"))
        return {}
    return fetched
