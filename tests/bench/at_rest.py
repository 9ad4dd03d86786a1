"""What encryption costs a checkpoint: MiB/s of writing and reading, beside plain files.

    python -m tests.bench.at_rest [--mib 64] [--repeats 7] [--record]

The file is written as the worker writes it, with the digests of a transfer, and read as it is
verified. The disk's cache takes part; both kinds go in turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from client import at_rest
from client.compute.saving import write_atomically
from tests.bench import figures as page

COMMAND = "python -m tests.bench.at_rest"
MEASURES = ("client/at_rest.py", "client/compute/saving.py")
KEYS = {"plain": None, "encrypted": bytes(range(32))}


def turns(folder: Path, mib: int, repeats: int) -> dict[str, tuple[float, float]]:
    """Return the median MiB/s of writing and of reading, by kind."""
    data = memoryview(bytes(mib << 20))
    taken: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in KEYS}
    for _ in range(repeats):
        for kind, key in KEYS.items():
            at_rest.use(key)
            path = folder / kind
            began = time.perf_counter()
            write_atomically(path, [data], durable=False)
            written = time.perf_counter()
            if len(at_rest.read_bytes(path)) != len(data):
                raise OSError("the file is not what was written")
            taken[kind][0].append(mib / (written - began))
            taken[kind][1].append(mib / (time.perf_counter() - written))
    return {
        kind: (statistics.median(writes), statistics.median(reads))
        for kind, (writes, reads) in taken.items()
    }


def main() -> None:
    """Measure, print, and record if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    page.add_record_flag(parser)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = turns(Path(folder), asked.mib, asked.repeats)
    what = f"a checkpoint of {asked.mib} MiB encrypted at rest: written / read"
    (plain_in, plain_out), (sealed_in, sealed_out) = found["plain"], found["encrypted"]
    value = f"**{sealed_in:.0f} / {sealed_out:.0f} MiB/s**; plain {plain_in:.0f} / {plain_out:.0f}"
    spread = f"medians of {asked.repeats}, in turns, one thread"
    print(f"{what}: {value} ({spread})")
    if asked.record:
        page.record([page.figure("client", what, value, spread, COMMAND, MEASURES)])


if __name__ == "__main__":
    main()
