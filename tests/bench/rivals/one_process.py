"""The reference trainer in a process of its own, with both threads and no wire.

    python -m tests.bench.rivals.one_process MANIFEST

Prints a line of JSON: the moments at which steps ended, in monotonic seconds, and the losses.
"""

import json
import sys
import time
from pathlib import Path

import msgspec

from client.lab.reference import train_reference
from protocol.manifest import Manifest
from tests.support.texts import corpus_of

THREADS = 2


def main() -> None:
    """Train and print."""
    manifest = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Manifest)
    corpus = corpus_of("stdlib")
    moments = [time.monotonic()]
    run = train_reference(
        manifest,
        corpus,
        threads=THREADS,
        on_step=lambda step, loss: moments.append(time.monotonic()),
    )
    print(json.dumps({"moments": moments, "losses": run.losses}), flush=True)


if __name__ == "__main__":
    main()
