"""Does what the wire does to numbers change what is learnt? Held-out loss against that of fp32.

    python -m tests.bench.parity [--data TEXT] [--tokens 3000000] [--seeds 3] [--jobs 2]
                                 [--ways fp32,bf16,s8,kills,int4] [--out tests/bench/results]

A GPT of 8 layers, width 256, context 256, in four stages of two layers. A seed fixes the initial
weights and the samples, so the runs of a seed differ only in their way:

    fp32   nothing is lost between stages
    bf16   activations and gradients at the three boundaries in bf16
    s8     in S8
    kills  in S8, averaged gradients as well, in a swarm of 4 x 2 simulated volunteers with real
           executors; every tenth of the run one of them is killed and a newcomer comes
    int4   4 bits in blocks of 128, which no swarm sends: the control that has to fail
    delayed
           as fp32, with updates delayed by one step; run where it is asked for, and reported but
           not judged: it is another way to train, not another wire

Each run adds a line to ``parity.jsonl``, and one that is there already is not run again. All but
kills go on within a run, too, from ``unfinished-*`` of the last minute. So it may be interrupted.
``parity.md`` is rewritten after each run. Each job takes one core for the whole run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor

from client.cli.models.model_source import read_parameters
from client.compute.checkpoint import read_info
from client.compute.codec import decode, encode
from client.compute.payload import BLOCK
from client.compute.requests import PrepareData
from client.compute.samples import prepare
from client.lab.simulate.tensors import TensorSwarm
from client.lab.simulate.training import TrainingWorld
from model_zoo.data import BUILT_IN
from model_zoo.datasets.corpus import open_source
from model_zoo.models.family import State
from model_zoo.reference import TrainingPlan, WireContext, evaluate, train_reference
from model_zoo.specs.codec import AveragingCodec
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.whole import load_whole

SPEC = ModelSpec("gpt", 8, 256, 8, 8, 1024, context=256)
CUT = (2, 2, 2, 2)
MICROBATCHES, SEQUENCES = 4, 8
REPLICAS = 2
KILLS = 9
JUDGED = ("fp32", "bf16", "s8", "kills", "int4")
"""The ways that are run unless others are asked for."""
WAYS = (*JUDGED, "delayed")
HELD_OUT_BATCHES, HELD_OUT_SEQUENCES = 48, 8
LIMIT_PERCENT = 0.25
"""Bound of the mean difference of an acceptable wire."""
SAID_EVERY_S = 60.0


@dataclass(frozen=True)
class Run:
    """One run and what came of it."""

    way: str
    seed: int
    tokens: int
    data: str
    """The digest of the text."""
    held_out: float = 0.0
    """Mean loss per token in nats."""
    last_loss: float = 0.0
    """Training loss, mean of the last tenth of the steps."""
    seconds: float = 0.0
    """Since it went on, if it was cut off."""

    @property
    def key(self) -> tuple[str, int, int, str]:
        """The identity of the run."""
        return self.way, self.seed, self.tokens, self.data


def main() -> int:
    """Run what is missing; 1 if the differences are not as they should be, or there are none."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default=BUILT_IN)
    parser.add_argument("--tokens", type=int, default=3_000_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--ways", type=lambda text: text.split(","), default=list(JUDGED))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    asked = parser.parse_args()
    if unknown := set(asked.ways) - set(WAYS):
        parser.error(f"no such way: {', '.join(sorted(unknown))}; there are {', '.join(WAYS)}")
    asked.out.mkdir(parents=True, exist_ok=True)
    file, digest = asked.out / "parity.jsonl", open_source(asked.data).digest
    steps = -(-asked.tokens // plan_of(0, 1).tokens_per_step)
    tokens = steps * plan_of(0, 1).tokens_per_step
    done = {run.key for run in read(file)}
    pairs = itertools.product(range(asked.seeds), asked.ways)
    wanted = [Run(way, seed, tokens, digest) for seed, way in pairs]
    missing = [run for run in wanted if run.key not in done]
    failed = False
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as pool:
        running = [pool.submit(carry_out, run, asked.data, asked.out) for run in missing]
        for future in as_completed(running):
            if (error := future.exception()) is not None:  # the results of the others are kept
                failed = True
                traceback.print_exception(error)
                continue
            run = future.result()
            with file.open("a") as out:
                out.write(json.dumps(asdict(run)) + "\n")
            print(f"{run.way} seed {run.seed}: held-out {run.held_out:.4f}, {run.seconds:.0f} s")
            (asked.out / "parity.md").write_text(markdown(read(file)))
    mine = [run for run in read(file) if run.tokens == tokens and run.data == digest]
    print("\n".join([*rows(mine), "", verdict(mine)]))
    return 0 if as_it_should_be(mine) and not failed else 1


def plan_of(seed: int, steps: int) -> TrainingPlan:
    """Return what a run of so many steps trains."""
    optimizer = OptimizerSpec(
        1e-3, 1e-4, warmup_steps=min(50, steps), decay_steps=steps, beta2=0.95
    )
    return TrainingPlan(SPEC, CUT, optimizer, seed, steps, MICROBATCHES, SEQUENCES)


# --- one run -------------------------------------------------------------------------------------


def carry_out(run: Run, data: str, folder: Path) -> Run:
    """Train and evaluate on one thread; what is unfinished is kept in ``folder``."""
    torch.set_num_threads(1)
    plan, corpus = plan_of(run.seed, run.tokens // plan_of(0, 1).tokens_per_step), open_source(data)
    plan = replace(plan, delayed=run.way == "delayed")
    begin, say = time.monotonic(), _Progress(run, plan.steps)
    kept = folder / f"unfinished-{run.way}-{run.seed}-{run.tokens}.safetensors"
    if run.way == "kills":
        losses, state = _swarm(plan, data, run.seed, say)
    else:
        wire = WIRES[run.way]
        reference = train_reference(plan, corpus, wire=wire, threads=1, on_step=say, keep_in=kept)
        losses, state = reference.losses, reference.state
    held_out = evaluate(
        load_whole(SPEC, state),
        corpus,
        batches=HELD_OUT_BATCHES,
        sequences=HELD_OUT_SEQUENCES,
        context=SPEC.context,
    )
    kept.unlink(missing_ok=True)
    tenth = losses[-max(1, len(losses) // 10) :]
    seconds = time.monotonic() - begin
    return Run(*run.key, round(held_out, 6), round(statistics.mean(tenth), 6), round(seconds, 1))


class _Progress:
    """Says on stderr how far a run is."""

    def __init__(self, run: Run, steps: int) -> None:
        self._run, self._steps, self._said = run, steps, time.monotonic()

    def __call__(self, step: int, loss: float) -> None:
        if time.monotonic() > self._said + SAID_EVERY_S:
            self._said = time.monotonic()
            words = f"step {step + 1} of {self._steps}, loss {loss:.4f}"
            print(f"{self._run.way} seed {self._run.seed}: {words}", file=sys.stderr, flush=True)


def _through(codec: AveragingCodec, x: Tensor, place: WireContext) -> Tensor:
    return decode(encode(x, codec, direction=place.direction), x.shape)


def _int4(x: Tensor, place: WireContext) -> Tensor:
    blocks = x.reshape(-1, BLOCK)
    scales = blocks.abs().amax(dim=1, keepdim=True).clamp_(min=1e-30) / 7
    return (blocks / scales).round_().mul_(scales).view(x.shape)


def _untouched(x: Tensor, place: WireContext) -> Tensor:
    return x


WIRES: Mapping[str, Callable[[Tensor, WireContext], Tensor]] = {
    "fp32": _untouched,
    "bf16": partial(_through, "bf16"),
    "s8": partial(_through, "s8"),
    "int4": _int4,
    "delayed": _untouched,
}


def _swarm(
    plan: TrainingPlan, data: str, seed: int, say: Callable[[int, float], None]
) -> tuple[list[float], State]:
    """Train in a simulated swarm from which volunteers vanish; newcomers take their places."""
    with tempfile.TemporaryDirectory(prefix="parity") as folder:
        text = Path(folder) / "text"
        digest = open_source(data).digest
        prepare(PrepareData(source=data, digest=digest, path=str(text)))
        world = TensorSwarm(plan, text, Path(folder), "s8", "s8").world(REPLICAS, seed)
        killer = _Killer(world, plan.steps)
        world.agenda.every(0.25, killer.look)
        world.agenda.every(1.0, lambda: say(len(world.losses) - 1, _newest_loss(world)))
        world.start_clock()
        world.run(float("inf"))
        assert killer.killed == KILLS, f"only {killer.killed} were killed"
        state: State = {}
        for stage in range(len(CUT)):
            peer = next(p for p in world.peers.values() if p.alive and p.stage == stage)
            assert peer.worker is not None
            path = Path(peer.worker.save(plan.steps).split("\n")[0])
            state |= read_parameters(path, read_info(path))
        # a step that was completed for a leader that died may have none
        return [world.losses[step] for step in sorted(world.losses)], state


def _newest_loss(world: TrainingWorld) -> float:
    return world.losses[max(world.losses)] if world.losses else 0.0


class _Killer:
    """Kills one of a stage where somebody is left, each tenth of the run."""

    def __init__(self, world: TrainingWorld, steps: int) -> None:
        self._world, self._steps, self.killed = world, steps, 0

    def look(self) -> None:
        """Kill if it is time."""
        world = self._world
        due = (self.killed + 1) * self._steps / (KILLS + 1)
        if self.killed == KILLS or len(world.losses) < due:
            return
        serving = defaultdict(list)
        for peer in world.peers.values():
            if peer.alive and peer.serving:
                serving[peer.stage].append(peer)
        several = [stage for stage, peers in sorted(serving.items()) if len(peers) > 1]
        if several:
            victim = world.random.choice(serving[world.random.choice(several)])
            self.killed += 1
            world.kill(victim)
            world.join(victim.stage, f"newcomer {self.killed}")


# --- what is written -----------------------------------------------------------------------------


def read(path: Path) -> list[Run]:
    """Return all runs so far."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Run(**json.loads(line)) for line in lines]


def differences(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Return by way the per cent that the held-out loss of each seed is above that of fp32."""
    base = {run.seed: run.held_out for run in runs if run.way == "fp32"}
    found: dict[str, list[float]] = {}
    for run in sorted(runs, key=lambda run: (WAYS.index(run.way), run.seed)):
        if run.seed in base and run.way != "fp32":
            found.setdefault(run.way, []).append(100 * (run.held_out / base[run.seed] - 1))
    return found


def as_it_should_be(runs: Sequence[Run]) -> bool:
    """Whether all wires stay within the limit on average, and the control does not.

    It is False if no wire has a seed in common with fp32, because then nothing is shown.
    """
    means = {way: abs(statistics.mean(found)) for way, found in differences(runs).items()}
    judged = [(way, mean) for way, mean in means.items() if way in JUDGED]
    return bool(judged) and all((mean > LIMIT_PERCENT) == (way == "int4") for way, mean in judged)


def verdict(runs: Sequence[Run]) -> str:
    """Return in words what the differences say, and of which ways there are none."""
    compared = differences(runs)
    absent = [way for way in JUDGED if way != "fp32" and way not in compared]
    if len(absent) == len(JUDGED) - 1:
        return f"Limit {LIMIT_PERCENT} % on average, int4 above it: nothing to compare yet."
    words = "as it should be" if as_it_should_be(runs) else "not as it should be"
    missing = f", but for {', '.join(absent)}, not compared yet" if absent else ""
    return f"Limit {LIMIT_PERCENT} % on average, int4 above it: {words}{missing}."


def rows(runs: Sequence[Run]) -> list[str]:
    """Return the table of one number of tokens and one text."""
    held_out = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.seed):
        held_out[run.way].append(run.held_out)
    lines = [
        "| way | seeds | held-out loss | compared | to fp32, per seed | mean |",
        "| --- | ---: | --- | ---: | --- | ---: |",
    ]
    apart = differences(runs)
    for way in sorted(held_out, key=WAYS.index):
        each = apart.get(way, [])
        mean = f"{statistics.mean(each):+.3f} %" if each else ""
        compared = "" if way == "fp32" else len(each)
        lines.append(
            f"| {way} | {len(held_out[way])} | {', '.join(f'{loss:.4f}' for loss in held_out[way])}"
            f" | {compared} | {', '.join(f'{one:+.3f} %' for one in each)} | {mean} |"
        )
    return lines


def markdown(runs: Sequence[Run]) -> str:
    """Return the page: a table for every number of tokens and text."""
    groups = defaultdict(list)
    for run in runs:
        groups[run.tokens, run.data].append(run)
    parts = [f"# Parity\n\nWritten by `python -m tests.bench.parity`. {__doc__}\n"]
    for (tokens, data), group in sorted(groups.items()):
        parts.append(f"## {tokens:,} tokens, text {data[:12]}\n\n" + "\n".join(rows(group)))
        parts.append(f"\n{verdict(group)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
