"""Token data fetched part by part over slow lines, beside the same data on every disk.

    python -m tests.bench.leaves [--up 20Mbit/s] [--steps 40] [--record]
    python -m tests.bench.leaves --context 1024 --sequences 2 --microbatches 8 --steps 12
    python -m tests.bench.leaves --context 1024 --sequences 2 --microbatches 8 --steps 12 \\
                                 --layers 6 --width 256

One stage, two volunteers with one thread each; 256 MiB of tokens that are bytes, of which the
founder has all. Every volunteer uploads at the given rate, contributions included. In the first run
the second volunteer fetches the parts that its microbatches need; in the other one it is given the
folder. The two runs are made twice, in turns. The first step is left out of the median and said by
itself: it is when everything is missing. The look-ahead of 100 MB fills at first, and until it has,
most microbatches of the second volunteer wait for some of their parts: a sample of this small model
is computed in less time than its part takes on the line. The rate at which the parts came says
whether the line was full, which they share with what is averaged. The second command has the steps
of a usual run: 16 samples of 1,024 tokens. In the third one the model is so large that a sample
takes longer to compute than its part on the line, as in all but the smallest models.
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
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=32)
    add_record_flag(parser)
    given = parser.parse_args()
    with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="vol") as folder:
        data = tokens(Path(folder))
        model = ModelChoices(layers=given.layers, width=given.width, heads=4, context=given.context)
        run = RunChoices(
            name="leaves",
            data=str(data),
            stages=1,
            steps=given.steps,
            sequences=given.sequences,
            microbatches=given.microbatches,
            redundancy=2,
            dual_homing=0,
            checkpoint_every=1000,
        )
        runs: dict[str, list[list[float]]] = {"fetched": [], "on disk": []}
        for turn in range(TURNS):
            for way, lengths in runs.items():
                homes = Path(folder) / f"{way.replace(' ', '-')}-{turn}"
                homes.mkdir()
                extra = ("--data", str(data)) if way == "on disk" else ()
                came: list[tuple[float, int]] = []
                lengths.append(steps(homes, run, model, given.up, extra, came))
                print(f"{way}: {_words(lengths[-1])}; {_line(came)}", flush=True)
    usual = {
        way: statistics.median(length for run in lengths for length in run[1:])
        for way, lengths in runs.items()
    }
    first = {way: statistics.median(run[0] for run in lengths) for way, lengths in runs.items()}
    ratios = [usual["on disk"] / statistics.median(run[1:]) for run in runs["fetched"]]
    one = figure(
        "data",
        f"{given.steps} steps{_shape(given)} while data come part by part at {given.up}, against "
        "data on disk",
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


def steps(
    homes: Path,
    run: RunChoices,
    model: ModelChoices,
    up: str,
    extra: tuple[str, ...],
    came: list[tuple[float, int]],
) -> list[float]:
    """Return the seconds of each step, the first one from when everybody served.

    Args:
        homes: a folder for both.
        run: the run.
        model: its model.
        up: upload limit of each.
        extra: flags of the second.
        came: gets moments, and the bytes of parts that it has at each.
    """
    count = run.steps
    found(homes, run, model)
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
            kept = (homes / NAMES[1]).rglob("*.leaf")
            came.append((time.monotonic(), sum(file.stat().st_size for file in kept)))
            time.sleep(POLL_S)
    times = [moments[step] for step in sorted(moments)]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def _shape(given: argparse.Namespace) -> str:
    """Say the shape of a step, where it is not the usual one."""
    shape = given.microbatches, given.sequences, given.context
    size = given.layers, given.width
    steps = "" if shape == (32, 4, 128) else " of {} x {} x {} tokens".format(*shape)
    return steps + ("" if size == (4, 128) else ", {} layers {} wide,".format(*size))


def _line(came: list[tuple[float, int]]) -> str:
    """Say how much came, and at what rate from the first part to the last."""
    most = came[-1][1]
    if not most:
        return "nothing came"
    moments = [at for at, size in came if 0 < size < most]
    seconds = max(moments[-1] - moments[0], 1e-3) if moments else 1e-3
    return f"{most / 1e6:.0f} MB came in {seconds:.0f} s, {8e-6 * most / seconds:.1f} Mbit/s"


def _words(lengths: list[float]) -> str:
    return f"first {lengths[0]:.1f} s, then {statistics.median(lengths[1:]):.2f} s a step"


if __name__ == "__main__":
    main()
