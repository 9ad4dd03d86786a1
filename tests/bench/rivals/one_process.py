"""The reference trainer in a process of its own, with both threads and no wire.

    python -m tests.bench.rivals.one_process MANIFEST STEPS

Prints a line of JSON: the moments at which steps ended, in monotonic seconds, and the losses.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from client.cli.founding.manifest import read_corpus
from client.lab.bench.efficiency import THREADS, training_plan
from client.lab.reference import train_reference
from protocol.manifest import Manifest


def main() -> None:
    """Train and print."""
    manifest_path, steps = sys.argv[1:]
    manifest = msgspec.json.decode(Path(manifest_path).read_bytes(), type=Manifest)
    plan = replace(training_plan(manifest), steps=int(steps))
    corpus = read_corpus("stdlib")
    moments = [time.monotonic()]
    run = train_reference(
        plan, corpus, threads=THREADS, on_step=lambda step, loss: moments.append(time.monotonic())
    )
    print(json.dumps({"moments": moments, "losses": run.losses}), flush=True)


if __name__ == "__main__":
    main()
