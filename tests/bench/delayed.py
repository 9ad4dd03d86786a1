"""Measures the time that the one-step-delayed update saves where averaging takes long: seconds per
step, in turns.

    python -m tests.bench.delayed [--mbit 20,50,100] [--rtt 20] [--runs 2] [--steps 6]
                                  [--out tests/bench/results]

One stage held by two volunteers with one thread each, on hosts of a network laboratory
(``tests.netlab``; takes root): a GPT of 2 layers, width 512, context 128, averaged in S8. Both
kinds of update run over the same line, one after the other, each in a swarm of its own. Beside the
medians stands what the efficiency model expects (``volunteer plan``). ``python -m
tests.bench.parity --ways fp32,delayed`` measures its effect on the loss.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from client.cli.founding.options import ModelChoices, RunChoices
from client.cli.planning.work import ModelWorks
from client.lab.local_swarm import terminate_as_interrupt
from client.plan.machines import Machine
from client.plan.model import Prediction, Run, predict
from protocol.manifest import WIRE_BYTES_PER_ELEMENT, Manifest
from tests.bench import wan
from tests.bench.machines import left_out, of_newest, this_machine
from tests.bench.plan_check import costing, timed_together
from tests.netlab.lab import Lab
from tests.netlab.table import Link, uniform

MODEL = ModelChoices(layers=2, width=512, heads=8, context=128)
SEQUENCES, MICROBATCHES = 4, 12
KINDS = {"synchronous": False, "delayed": True}


@dataclass(frozen=True)
class Result:
    """One run: seconds of its steps."""

    mbit: float
    rtt_ms: float
    kind: str
    median_s: float
    fastest_s: float
    slowest_s: float
    steps: int
    predicted_s: float
    averaging_s: float
    """Seconds of a round by the efficiency model."""
    compute_s: float
    """Forward and backward of one microbatch, both volunteers at once."""
    load: float
    cores: int
    machine: str = ""


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbers = lambda text: [float(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--mbit", type=numbers, default=[20.0, 50.0, 100.0])
    parser.add_argument("--rtt", type=numbers, default=[20.0])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / "delayed.jsonl"
    with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="vol") as folder:
        for _, mbit, rtt in itertools.product(range(asked.runs), asked.mbit, asked.rtt):
            for kind in KINDS:
                result = over_a_line(Path(folder), mbit, rtt, kind, asked.steps)
                with file.open("a") as out:
                    out.write(json.dumps(asdict(result)) + "\n")
                print(result, flush=True)
                (asked.out / "delayed.md").write_text(markdown(read(file)))


def over_a_line(folder: Path, mbit: float, rtt: float, kind: str, steps: int) -> Result:
    """Run one swarm."""
    run = RunChoices(
        name="delayed",
        stages=1,
        steps=1_000_000,
        sequences=SEQUENCES,
        microbatches=MICROBATCHES,
        redundancy=2,
        dual_homing=False,
        checkpoint_every=100_000,
        measure=False,
        delayed_update=KINDS[kind],
    )
    with Lab(uniform(wan.HOSTS, mbit, Link(rtt_ms=rtt))) as lab, wan.home(folder) as homes:
        manifest = wan.found(lab, homes, run, MODEL)
        intervals, _, load = wan.measured(lab, homes, steps, mbit, stages=1, replicas=2)
        compute_s = max(timed_together(manifest, 2))
    expected = prediction(manifest, compute_s, mbit, rtt)
    return Result(
        *(mbit, rtt, kind),
        median_s=round(statistics.median(intervals), 3),
        fastest_s=round(min(intervals), 3),
        slowest_s=round(max(intervals), 3),
        steps=len(intervals),
        predicted_s=round(expected.step_s, 3),
        averaging_s=round(expected.stages[0].averaging_s, 3),
        compute_s=round(compute_s, 4),
        load=load,
        cores=os.cpu_count() or 0,
        machine=this_machine(),
    )


def prediction(manifest: Manifest, compute_s: float, mbit: float, rtt: float) -> Prediction:
    """Return what the efficiency model expects."""
    [work] = ModelWorks.of(manifest, RunChoices(measure=False))(1) or []
    line = mbit * 1e6 / 8
    run = Run(
        stages=(costing(work, compute_s),),
        microbatches=MICROBATCHES,
        tokens_per_microbatch=manifest.tokens_per_microbatch,
        averaging_bytes_per_parameter=WIRE_BYTES_PER_ELEMENT["s8"],
        delayed=manifest.delayed_update,
    )
    machine = Machine("volunteer", 1.0, 16e9, line, line, rtt_s=rtt / 1e3)
    return predict(run, [[machine, machine]])


def read(path: Path) -> list[Result]:
    """Return all runs so far."""
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()]


def markdown(results: Sequence[Result]) -> str:
    """Return the table: medians over runs of the newest's machine, with their range."""
    shown = of_newest(results)
    rows = [
        "| Mb/s | RTT ms | runs | synchronous, s a step | delayed | ratio | expected ratio | "
        "a round by the model, s |",
        "| ---: | ---: | ---: | --- | --- | ---: | ---: | ---: |",
    ]
    for mbit, rtt in sorted({(r.mbit, r.rtt_ms) for r in shown}):
        here = [r for r in shown if (r.mbit, r.rtt_ms) == (mbit, rtt)]
        of = {kind: [r for r in here if r.kind == kind] for kind in KINDS}
        if not all(of.values()):
            continue
        usual, late = (statistics.median(r.median_s for r in of[kind]) for kind in KINDS)
        expected = [statistics.median(r.predicted_s for r in of[kind]) for kind in KINDS]
        spread = {
            kind: f"{statistics.median(r.median_s for r in runs):.2f} "
            f"({min(r.fastest_s for r in runs):.2f} to {max(r.slowest_s for r in runs):.2f})"
            for kind, runs in of.items()
        }
        rows.append(
            f"| {mbit:g} | {rtt:g} | {len(of['delayed'])} | {spread['synchronous']} "
            f"| {spread['delayed']} | {usual / late:.2f} x | {expected[0] / expected[1]:.2f} x "
            f"| {here[0].averaging_s:.2f} |"
        )
    where = shown[0].machine or f"{shown[0].cores} cores"
    return (
        f"# The one-step-delayed update\n\nWritten by `python -m tests.bench.delayed`. {__doc__}\n"
        f"Machine: {where}, shared by both volunteers and the laboratory. Medians; in brackets "
        f"the fastest and the slowest step.{left_out(results, shown)}\n\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    main()
