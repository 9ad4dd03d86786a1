"""The middle stage of three, in a process of its own: what a chain of calls goes through.

    python -m tests.bench.rivals.chain_stage MANIFEST

A real seat with worker, codec and network (``seat_host``); index 0 of the two who meet.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import trio

from protocol.manifest import Manifest
from tests.bench.rivals.seat_host import input_ended, seated

STAGE, SEATS = 1, 3


async def run(manifest: Manifest) -> None:
    """Serve until standard input ends."""
    async with seated(manifest, stage=STAGE, index=0, seats=SEATS):
        await input_ended()


if __name__ == "__main__":
    trio.run(run, msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Manifest))
