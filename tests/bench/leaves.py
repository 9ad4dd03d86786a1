"""Token data fetched part by part over slow lines, beside the same data on every disk.

    python -m tests.bench.leaves [--up 20Mbit/s] [--steps 40] [--record]

One stage, two volunteers with one thread each; 256 MiB of tokens that are bytes, of which the
founder has all. Every volunteer uploads at the given rate, contributions included. In the first run
the second volunteer fetches the parts that its microbatches need; in the other one it is given the
folder. The two runs are made twice, in turns. The first step is left out of the median and said by
itself: it is when everything is missing. The look-ahead of 100 MB fills at first, and until it has,
most microbatches of the second volunteer wait for some of their parts.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import string
import tempfile
import time
from pathlib import Path

from client.cli.founding.options import ModelChoices, RunChoices
from client.lab.bench.efficiency import HOST, NAMES, found
from client.lab.local_swarm import LocalSwarm, terminate_as_interrupt
from model_zoo.datasets.build import build
from tests.bench.figures import add_record_flag, figure, record

SIZE_BYTES = 256 * 2**20
MODEL = ModelChoices(layers=4, width=128, heads=4, context=128)
FLAGS = ("--listen-host", HOST, "--threads", "1")
TURNS = 2
LIMIT_S = 300.0
POLL_S = 0.1
MEASURES = ("client/train/transfer/leaf_supply.py", "client/store/leaves.py", "model_zoo/specs")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--up", default="20Mbit/s", help="upload limit of every volunteer")
    parser.add_argument("--steps", type=int, default=40)
    add_record_flag(parser)
    given = parser.parse_args()
    with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="vol") as folder:
        data = tokens(Path(folder))
        runs: dict[str, list[list[float]]] = {"fetched": [], "on disk": []}
        for turn in range(TURNS):
            for way, lengths in runs.items():
                homes = Path(folder) / f"{way.replace(' ', '-')}-{turn}"
                homes.mkdir()
                extra = ("--data", str(data)) if way == "on disk" else ()
                lengths.append(steps(homes, data, given.steps, given.up, extra))
                kept = (homes / NAMES[1]).rglob("*.leaves/**/*")
                came = sum(file.stat().st_size for file in kept if file.is_file())
                print(f"{way}: {_words(lengths[-1])}; {came / 1e6:.0f} MB came", flush=True)
    usual = {
        way: statistics.median(length for run in lengths for length in run[1:])
        for way, lengths in runs.items()
    }
    first = {way: statistics.median(run[0] for run in lengths) for way, lengths in runs.items()}
    ratios = [usual["on disk"] / statistics.median(run[1:]) for run in runs["fetched"]]
    one = figure(
        "data",
        f"{given.steps} steps while data come part by part at {given.up}, against data on disk",
        f"**{usual['on disk'] / usual['fetched']:.2f}**",
        f"{min(ratios):.2f} to {max(ratios):.2f}; first step {first['fetched']:.1f} s against "
        f"{first['on disk']:.1f} s; load {os.getloadavg()[0]:.0f}",
        "python -m tests.bench.leaves",
        MEASURES,
    )
    print(f"{one.what}: {one.value} ({one.spread})")
    if given.record:
        record([one])


def tokens(folder: Path) -> Path:
    """Make a folder of tokens out of words that mean nothing; return it."""
    words, rng = folder / "words.txt", random.Random(1)
    known = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9))) for _ in range(4096)]
    with words.open("w") as file:
        while file.tell() < SIZE_BYTES:
            file.write(" ".join(rng.choices(known, k=100_000)) + "\n")
    build([words], folder / "tokens")
    words.unlink()
    return folder / "tokens"


def steps(homes: Path, data: Path, count: int, up: str, extra: tuple[str, ...]) -> list[float]:
    """Return the seconds of each step, the first one from when everybody served."""
    run = RunChoices(
        name="leaves",
        data=str(data),
        stages=1,
        steps=count,
        sequences=4,
        microbatches=32,
        redundancy=2,
        dual_homing=0,
        checkpoint_every=1000,
    )
    found(homes, run, MODEL)
    flags = (*FLAGS, "--upload-limit", up)
    moments: dict[int, float] = {}
    with LocalSwarm(homes / "bench.swarm", homes, homes / "logs") as swarm:
        first = swarm.start(NAMES[0], flags)
        first.wait_until_it_answers(60.0)
        second = swarm.start(NAMES[1], (*flags, *extra))
        deadline = time.monotonic() + LIMIT_S
        while len(moments) < count:
            if time.monotonic() > deadline or not all(m.alive for m in swarm.members):
                raise SystemExit(f"{len(moments)} of {count} steps\n{second.log_tail()}")
            for event in first.new_events():
                step = event.data.get("step")
                if "every stage is covered" in event.words:
                    moments.setdefault(-1, event.time)
                if event.kind == "StepCommitted" and isinstance(step, int):
                    moments.setdefault(step, event.time)
            time.sleep(POLL_S)
    times = [moments[step] for step in sorted(moments)]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def _words(lengths: list[float]) -> str:
    return f"first {lengths[0]:.1f} s, then {statistics.median(lengths[1:]):.2f} s a step"


if __name__ == "__main__":
    main()
