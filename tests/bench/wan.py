"""Measures the share of the ideal speed that a real swarm reaches over lines of given rate and
length.

    python -m tests.bench.wan [--mbit 50,100] [--rtt 0,50] [--codecs s8,fp32] [--runs 2]
                              [--steps 4] [--microbatches 64] [--out tests/bench/results]

Two stages, one volunteer each with one thread, on hosts of a network laboratory (``tests.netlab``;
takes root): a GPT of 2 layers, width 128 with 32 in the feed-forward layer, context 16, 128
sequences per microbatch, which computes little for what it sends. The bound is that of the
efficiency model, min(compute, link): M tau. Computing is timed before and after the codecs' runs
over a line, both stages at the same moment, since they share the cores; the link's part is what the
manifest says crosses it at the line's rate, of which frames take up to 5 %. The laboratory's relay
and both nodes compute on the same cores, which the bound leaves out. Every run adds a line to
``wan.jsonl``; ``wan.md`` is rewritten from its lines of this machine. Rows are medians of runs, a
run's speed comes from its median step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.errors import UserError
from client.lab.local_swarm import LocalSwarm, terminate_as_interrupt
from client.plan.model import Machine, Prediction, Run, predict
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from client.train.machine.capacity import FILE_NAME as CAPACITY_FILE
from protocol.address import Address
from protocol.manifest import Manifest
from tests.bench.machines import left_out, of_newest, this_machine
from tests.bench.timing import costing, timed_together, wait_until_served
from tests.netlab.lab import Lab, uniform

MODEL = ModelChoices(layers=2, width=128, heads=1, ffn_width=32, context=16)
"""As little computing as a boundary of a block's width allows: 128, what one S8 scale is for."""
SEQUENCES = 128
HOSTS = ["a", "b"]
PORT = 4001
LEFT_OUT = 2
"""Steps after everybody is there that do not count."""
START_S, STEP_S = 120.0, 60.0
POLL_S = 0.1


@dataclass(frozen=True)
class Result:
    """One run. Speeds in tokens per second."""

    mbit: float
    rtt_ms: float
    codec: str
    microbatches: int
    tokens: float
    """From the median step."""
    slowest: float
    fastest: float
    steps: int
    bound: float
    """min(compute bound, link bound)."""
    link_bound: float
    predicted: float
    """With what filling and draining the pipeline costs."""
    limit: str
    in_flight: int
    compute_s: float
    """The slower stage's microbatch, forward and backward."""
    line_share: float
    """Bytes sent by the first volunteer, as a share of its line's capacity."""
    lost_packets: int
    """Datagrams lost by the relay; none are expected here."""
    load: float
    cores: int
    congestion: str
    machine: str = ""

    @property
    def share(self) -> float:
        """Share of the bound."""
        return self.tokens / self.bound


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mbit", type=_numbers, default=[50.0, 100.0])
    parser.add_argument("--rtt", type=_numbers, default=[0.0, 50.0])
    parser.add_argument("--codecs", type=lambda text: text.split(","), default=["s8", "fp32"])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="vol") as folder:
        for _, mbit, rtt in itertools.product(range(asked.runs), asked.mbit, asked.rtt):
            for result in over_a_line(Path(folder), mbit, rtt, asked):
                with (asked.out / "wan.jsonl").open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
                print(words(result), flush=True)
                (asked.out / "wan.md").write_text(markdown(read(asked.out / "wan.jsonl")))


def over_a_line(folder: Path, mbit: float, rtt: float, asked: argparse.Namespace) -> list[Result]:
    """Measure every codec over one line."""
    timings: list[list[float]] = []
    seen = []
    with Lab(uniform(HOSTS, mbit), rtt) as lab:
        for codec in asked.codecs:
            with home(folder) as homes:
                run = choices(codec, asked.microbatches)
                manifest = found(lab, homes, run, MODEL)
                if not timings:
                    timings.append(timed_together(manifest))
                seen.append((manifest, codec, measured(lab, homes, asked.steps, mbit)))
        timings.append(timed_together(manifest))
    lost = lab.wire_counts.get("overflowed", 0)
    seconds = [statistics.mean(both) for both in zip(*timings, strict=True)]
    results = []
    for manifest, codec, (intervals, share, load) in seen:
        step = manifest.microbatches_per_step * manifest.tokens_per_microbatch
        expected = prediction(manifest, seconds, mbit, rtt)
        narrow = min(stage.link_per_s for stage in expected.stages)
        results.append(
            Result(
                *(mbit, rtt, codec, manifest.microbatches_per_step),
                tokens=round(step / statistics.median(intervals), 1),
                slowest=round(step / max(intervals), 1),
                fastest=round(step / min(intervals), 1),
                steps=len(intervals),
                bound=round(expected.tokens_per_s / expected.efficiency, 1),
                link_bound=round(narrow * manifest.tokens_per_microbatch, 1),
                predicted=round(expected.tokens_per_s, 1),
                limit=expected.limit,
                in_flight=expected.in_flight,
                compute_s=round(max(seconds), 4),
                line_share=round(share, 3),
                lost_packets=lost,
                load=load,
                cores=os.cpu_count() or 0,
                congestion=Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
                machine=this_machine(),
            )
        )
    return results


@contextmanager
def home(folder: Path) -> Iterator[Path]:
    """Give a run a folder; what a volunteer measured of this machine stays for the next run."""
    homes = folder / "run"
    kept = folder / CAPACITY_FILE
    for host in HOSTS:
        data = home_folders(homes / host).data
        make_private(data)
        if kept.exists():
            shutil.copyfile(kept, data / CAPACITY_FILE)
    try:
        yield homes
        measured_now = home_folders(homes / HOSTS[0]).data / CAPACITY_FILE
        if measured_now.exists():
            shutil.copyfile(measured_now, kept)
    finally:
        shutil.rmtree(homes)


def choices(codec: str, microbatches: int) -> RunChoices:
    """Return what is founded."""
    return RunChoices(
        name="wan",
        optimizer="adamw",
        stages=2,
        steps=1_000_000,
        sequences=SEQUENCES,
        microbatches=microbatches,
        boundary_codec=codec,  # type: ignore[arg-type]
        redundancy=1,
        dual_homing=False,
        checkpoint_every=100_000,
    )


def found(lab: Lab, homes: Path, run: RunChoices, model: ModelChoices) -> Manifest:
    """Found the swarm at the first host's address."""
    founder = ensure_identity(make_private(home_folders(homes / HOSTS[0]).data))
    manifest = found_swarm(founder.peer, run, model, OptimizerChoices()).manifest
    address = Address("ip4", lab.address(HOSTS[0]), PORT, founder.peer)
    write_swarm_file(homes / "x.swarm", sign(manifest, founder, (address,)))
    return manifest


def measured(
    lab: Lab, homes: Path, steps: int, mbit: float, *, stages: int = 2, replicas: int = 1
) -> tuple[list[float], float, float]:
    """Return the seconds between steps, the share of the line used, and the machine's load."""
    with LocalSwarm(homes / "x.swarm", homes, homes / "logs") as swarm:
        for host in lab.hosts:
            where = ("--listen-host", lab.address(host), "--listen-port", str(PORT))
            member = swarm.start(host, (*where, "--threads", "1"), within=lab.command(host))
            member.wait_until_it_answers(START_S)
        first = swarm.members[0]
        wait_until_served(swarm, stages, replicas)
        ready, moments = time.time(), dict[int, float]()
        sent = []
        deadline = time.monotonic() + START_S + steps * STEP_S
        while len(moments) < LEFT_OUT + steps + 1:
            if time.monotonic() > deadline or not all(m.alive for m in swarm.members):
                raise UserError(f"{len(moments)} steps: " + first.log_tail())
            for event in first.new_events():
                step = event.data.get("step")
                if event.kind == "StepCommitted" and event.time > ready and isinstance(step, int):
                    moments.setdefault(step, event.time)
            now = first.snapshot()
            if now is not None and len(moments) > LEFT_OUT:
                sent.append((time.monotonic(), now.network.sent_bytes))
            time.sleep(POLL_S)
        load = round(os.getloadavg()[0], 1)
        for member in swarm.members:  # nothing of theirs is needed: no orderly end
            member.kill()
    times = [moments[step] for step in sorted(moments)][LEFT_OUT:]
    (start, before), (end, after) = sent[0], sent[-1]
    share = (after - before) * 8 / 1e6 / mbit / max(end - start, 1e-9)
    return [later - earlier for earlier, later in itertools.pairwise(times)], share, load


def prediction(manifest: Manifest, seconds: Sequence[float], mbit: float, rtt: float) -> Prediction:
    """Return what the efficiency model expects of stages that take so long over such a line."""
    line = mbit * 1e6 / 8
    run = Run(
        stages=tuple(map(costing, manifest.stages, seconds)),
        microbatches=manifest.microbatches_per_step,
        tokens_per_microbatch=manifest.tokens_per_microbatch,
        averaging_bytes_per_parameter=0.0,  # one replica each
    )
    machine = Machine("volunteer", 1.0, 16e9, line, line, rtt_s=rtt / 1e3)
    return predict(run, [[machine], [machine]])


def words(result: Result) -> str:
    """Return a run in one line."""
    return (
        f"{result.mbit:g} Mb/s, {result.rtt_ms:g} ms, {result.codec}: {result.tokens:g} tokens/s "
        f"({result.slowest:g} to {result.fastest:g}), {result.share:.2f} of the bound "
        f"{result.bound:g}, {result.tokens / result.predicted:.2f} of {result.predicted:g} "
        f"predicted ({result.limit}); line {result.line_share:.0%} used; load {result.load:g}"
    )


def read(path: Path) -> list[Result]:
    """Return all runs so far."""
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()]


def markdown(results: Sequence[Result]) -> str:
    """Return the table of medians over runs of the newest's machine, with their range."""
    shown = of_newest(results)
    rows = [
        "| Mb/s | RTT ms | codec | runs | tokens/s | bound | limit | of the bound | of the "
        "prediction | of the link bound | line used | load |",
        "| ---: | ---: | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    cells: dict[tuple[float, float, str], list[Result]] = {}
    for result in shown:
        cells.setdefault((result.mbit, result.rtt_ms, result.codec), []).append(result)
    for (mbit, rtt, codec), runs in sorted(cells.items()):
        limits = "/".join(sorted({run.limit for run in runs}))
        rows.append(
            f"| {mbit:g} | {rtt:g} | {codec} | {len(runs)} | {_spread((r.tokens for r in runs), 0)}"
            f" | {_spread((r.bound for r in runs), 0)} | {limits}"
            f" | {_spread(r.share for r in runs)}"
            f" | {_spread(r.tokens / r.predicted for r in runs)}"
            f" | {_spread(r.tokens / r.link_bound for r in runs)}"
            f" | {_spread(r.line_share for r in runs)} | {_spread((r.load for r in runs), 1)} |"
        )
    rates = {
        (mbit, rtt): statistics.median(r.tokens for r in runs)
        / statistics.median(r.tokens for r in cells[mbit, rtt, "fp32"])
        for (mbit, rtt, codec), runs in sorted(cells.items())
        if codec == "s8" and (mbit, rtt, "fp32") in cells
    }
    ratios = "".join(f"- {m:g} Mb/s, {t:g} ms: {ratio:.2f} x\n" for (m, t), ratio in rates.items())
    where = shown[0].machine or f"{shown[0].cores} cores"
    ways = sorted({result.congestion for result in shown})
    return (
        f"# Over a long line\n\nWritten by `python -m tests.bench.wan`; {__doc__}\n"
        f"Machine: {where}, shared with other work (see the load), TCP {'/'.join(ways)}. "
        "Medians; in brackets the range over runs. A share of the bound above 1: more ran beside "
        f"the timing of the stages than beside the swarm.{left_out(results, shown)}\n\n"
        + "\n".join(rows)
        + "\n\n"
        "S8 against fp32, tokens/s:\n\n" + ratios
    )


def _spread(figures: Iterable[float], digits: int = 2) -> str:
    found = sorted(figures)
    ends = f" ({found[0]:.{digits}f} to {found[-1]:.{digits}f})" if len(found) > 1 else ""
    return f"{statistics.median(found):.{digits}f}{ends}"


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
