"""Robust aggregation rules on real gradients: errors under attack, loss, time.

    python -m tests.bench.robust [errors|loss|speed …] [--data TEXT] [--steps 100] [--seeds 1]
                                 [--lie LIE] [--out tests/bench/results]

The gradients are those of the tiny preset as one stage, computed and averaged in S8 by the workers
of volunteers, without a network.

errors: 16 replicas with two microbatches of 4 sequences each, of which 4, 5 or 6 lie, after 60
steps. The relative error of the mean: |mean - mean of the honest| / |mean of the honest|. Segments
as in a swarm, one a replica; beside it centred clipping of the whole vector as one segment, without
leaving anybody out, and with a radius near 0, which is the geometric median.

loss: 2 or 4 replicas share the 16 microbatches (of 1 sequence) of each step evenly, one of them
lies about what it contributes and owns no segment. Held-out loss at the end, by seeds.

speed: how long an owner takes to aggregate, contributions decoded from S8 included.

Writes ``robust.jsonl`` and ``robust.md``. All parts take about an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from client.cli.founding.presets import PRESETS
from client.compute.aggregation.centred_clipping import (
    LEFT_OUT,
    RADIUS,
    clipping,
    inner_products,
)
from client.compute.aggregation.kept import combined
from client.compute.aggregation.rule import new_aggregation
from client.compute.requests import (
    Apply,
    ApplyLocal,
    Contribute,
    ForwardBackward,
    OpenStage,
    Reduce,
)
from model_zoo.datasets.corpus import open_source
from model_zoo.reference import evaluate
from model_zoo.specs.aggregation import DEFAULT, RULES
from model_zoo.specs.tokens import token_dtype
from protocol.rounds.shards import segmented, shard_bounds
from tests.bench.machines import left_out, of_newest, this_machine
from tests.support.compute_stages import LocalWorker

OPEN = [name for name, rule in RULES.items() if not rule.secret]
"""The rules that see contributions."""
PARTS = ("errors", "loss", "speed")
PRESET = PRESETS["tiny"]
PER_STEP = PRESET.microbatches_per_step
WARM_STEPS = 60
HELD_OUT = 32
"""Sequences of the held-out text, times 4."""
SPEED_NUMBERS = 1 << 20


@dataclass(frozen=True)
class Row:
    """One figure."""

    part: str
    rule: str
    replicas: int
    liars: int
    lie: str
    value: float
    unit: str
    setting: str = ""
    seed: int = 0
    machine: str = ""


# --- lies -----------------------------------------------------------------------------------

Lie = Callable[[Tensor, Tensor], Tensor]
"""Computed from the liar's own contribution (n,) and those of the honest (r, n)."""


def alie(own: Tensor, honest: Tensor, liars: int) -> Tensor:
    """As far from the mean as honest replicas are, in every number (Baruch et al. 2019)."""
    count = len(honest) + liars
    supporters = count // 2 + 1 - liars
    z = statistics.NormalDist().inv_cdf((count - liars - supporters) / (count - liars))
    return honest.mean(0) - max(z, 0.0) * honest.std(0)


def lies(liars: int) -> dict[str, Lie]:
    """Return the attacks by name (Xie et al. 2019 for the inner product)."""
    return {
        "none": lambda own, honest: own,
        "sign flip x 10": lambda own, honest: -10 * own,
        "ALIE": lambda own, honest: alie(own, honest, liars),
        "inner product x 0.5": lambda own, honest: -0.5 * honest.mean(0),
        "inner product x 3": lambda own, honest: -3 * honest.mean(0),
    }


TOLD: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda own: own,
    "x -10": lambda own: -10 * own,
    "x -1": lambda own: -own,
    "zero": torch.zeros_like,
    "x 1.02": lambda own: 1.02 * own,
}
"""Lies of one that knows its own contribution only."""


# --- workers --------------------------------------------------------------------------------


class Text:
    """Samples of the run, as they are sent to workers."""

    def __init__(self, source: str, sequences: int, seed: int) -> None:
        self._corpus, self._sequences, self._seed = open_source(source), sequences, seed

    def tokens(self, microbatch: int) -> bytes:
        """Return a microbatch's."""
        context = PRESET.model.context
        samples = self._corpus.sample(microbatch, self._sequences, context, self._seed)
        return samples.astype(token_dtype(PRESET.model.vocab)).tobytes()

    def held_out_loss(self, worker: LocalWorker) -> float:
        """Return the loss of a worker's model."""
        context = PRESET.model.context
        module = worker.replica.module
        return evaluate(module, self._corpus, batches=HELD_OUT, sequences=4, context=context)

    def opened(self, rule: str) -> LocalWorker:
        """Return a worker with the whole model open."""
        worker = LocalWorker()
        request = OpenStage(
            swarm="ab" * 32,
            model=PRESET.model,
            layers_per_stage=[PRESET.model.layers],
            stage=0,
            seed=self._seed,
            optimizer=PRESET.optimizer,
            boundary_codec="s8",
            averaging_codec="s8",
            aggregation=rule,
            sequences=self._sequences,
            tokens=PRESET.model.context,
        )
        worker.call(request)
        return worker


def compute(worker: LocalWorker, text: Text, step: int, microbatches: Sequence[int]) -> None:
    """Have a worker count microbatches."""
    for microbatch in microbatches:
        tokens = text.tokens(microbatch)
        worker.call(ForwardBackward(step=step, microbatch=microbatch, tokens=tokens))


# --- errors ---------------------------------------------------------------------------------


def errors(source: str) -> Iterator[Row]:
    """Attack the mean of 16 replicas."""
    text = Text(source, PRESET.sequences_per_microbatch, 1337)
    worker = text.opened(DEFAULT)
    for step in range(WARM_STEPS):
        compute(worker, text, step, range(step * PER_STEP, (step + 1) * PER_STEP))
        tokens = PER_STEP * worker.replica.wire.token_count
        worker.call(ApplyLocal(step=step, tokens=tokens))
    replicas, each = 16, 2
    first = WARM_STEPS * PER_STEP
    sums = torch.empty(replicas, worker.replica.size)
    for place in range(replicas):
        before = worker.replica.gradient_sum.clone()
        begin = first + place * each
        compute(worker, text, WARM_STEPS, range(begin, begin + each))
        sums[place] = worker.replica.gradient_sum - before
    for liars in (4, 5, 6):
        for name, lie in lies(liars).items():
            sent = sums.clone()
            for place in range(liars):
                sent[place] = lie(sums[place], sums[liars:])
            true = (sums if name == "none" else sums[liars:]).mean(0)
            wired = through_wire(worker, sent)
            for rule, setting in tried():
                found = aggregated(rule, wired, each, setting)
                error = float((found - true).norm() / true.norm())
                yield Row("errors", rule, replicas, liars, name, round(error, 3), "", setting)


VARIANTS: dict[str, tuple[float, float]] = {
    "": (RADIUS, LEFT_OUT),
    "of the whole": (RADIUS, LEFT_OUT),
    "nobody left out": (RADIUS, math.inf),
    "geometric median": (0.01, math.inf),
}
"""Of centred clipping: the radius, and from where on one is left out."""


def tried() -> list[tuple[str, str]]:
    """Return the rules with how they are varied."""
    return [(rule, "") for rule in OPEN] + [("centred-clipping", how) for how in VARIANTS if how]


def cut(size: int, replicas: int, setting: str) -> list[int]:
    """Return the bounds of the segments."""
    if setting == "of the whole":
        return [0, size]
    return segmented(shard_bounds(size, [1.0] * replicas))


def through_wire(worker: LocalWorker, sent: Tensor) -> Tensor:
    """Return contributions (r, n) as owners decode them."""
    wire, decoded = worker.replica.wire, torch.empty_like(sent)
    for row, out in zip(sent, decoded, strict=True):
        wire.segment_back(wire.segment_out(row), out)
    return decoded


def aggregated(rule: str, sent: Tensor, each: int, setting: str) -> Tensor:
    """Return the mean contribution (n,)."""
    parts = []
    for begin, end in pairwise(cut(sent.shape[1], len(sent), setting)):
        if setting:
            factors = clipping(
                inner_products(sent[:, begin:end]), [each] * len(sent), *VARIANTS[setting]
            )
            parts.append(combined(end - begin, sent[:, begin:end], factors))
            continue
        segment = new_aggregation(rule, end - begin)
        for one in sent:
            segment.add(one[begin:end].clone(), each)
        parts.append(segment.result())
    return torch.cat(parts) / len(sent)


# --- loss -----------------------------------------------------------------------------------


Try = tuple[int, str, str]
"""Replicas, rule, lie."""


def tries() -> list[Try]:
    """Return what is trained: without a liar first."""
    found = [(4, rule, lie) for lie in TOLD for rule in OPEN]
    return [*found, *((2, rule, lie) for lie in TOLD for rule in OPEN[:2])]


def losses(source: str, steps: int, seed: int, chosen: Sequence[Try]) -> Iterator[Row]:
    """Train with and without a liar."""
    for replicas, rule, lie in chosen:
        loss = round(trained(Text(source, 1, seed), rule, replicas, TOLD[lie], steps), 4)
        liars = int(lie != "none")
        yield Row("loss", rule, replicas, liars, lie, loss, "nats", f"{steps} steps", seed)


def trained(
    text: Text, rule: str, replicas: int, lie: Callable[[Tensor], Tensor], steps: int
) -> float:
    """Return the held-out loss after so many steps; the last replica lies."""
    workers = [text.opened(rule) for _ in range(replicas)]
    each = PER_STEP // replicas
    owners = replicas - 1
    bounds = segmented(shard_bounds(workers[0].replica.size, [1.0] * owners))
    for step in range(steps):
        for place, worker in enumerate(workers):
            begin = step * PER_STEP + place * each
            compute(worker, text, step, range(begin, begin + each))
        close(workers, step, bounds, each, lie)
    return text.held_out_loss(workers[0])


def close(
    workers: Sequence[LocalWorker],
    step: int,
    bounds: list[int],
    each: int,
    lie: Callable[[Tensor], Tensor],
) -> None:
    """Run a round by hand."""
    owners = len(workers) - 1
    request = Contribute(step=step, attempt=0, bounds=bounds)
    sent: list[list[bytes]] = [worker.call(request)[1] for worker in workers]
    wire = workers[-1].replica.wire
    for segment, (begin, end) in enumerate(pairwise(bounds)):
        numbers = torch.empty(end - begin)
        wire.segment_back(sent[-1][segment], numbers)
        sent[-1][segment] = bytes(wire.segment_out(lie(numbers)))
    sums, norms = list[bytes](), list[float]()
    for segment in range(len(bounds) - 1):
        owner = segment * owners // (len(bounds) - 1)
        others = [parts[segment] for place, parts in enumerate(sent) if place != owner]
        counts = [each] * len(workers)
        reduce = Reduce(step=step, attempt=0, segment=segment, microbatches=counts, own=owner)
        reply, (payload,) = workers[owner].call(reduce, *others)
        sums.append(payload)
        norms.append(reply.squared_norm)
    tokens = PER_STEP * wire.token_count
    apply = Apply(step=step, attempt=0, bounds=bounds, squared_norms=norms, tokens=tokens)
    for worker in workers:
        worker.call(apply, *sums)


# --- speed ----------------------------------------------------------------------------------


def speeds(source: str) -> Iterator[Row]:
    """Time an owner of a million numbers, in turns."""
    wire = Text(source, 1, 1).opened(DEFAULT).replica.wire
    for replicas in (2, 4, 8, 16):
        size = SPEED_NUMBERS
        payloads = [wire.segment_out(torch.randn(size)) for _ in range(replicas)]
        took: dict[str, list[float]] = {rule: [] for rule in OPEN}
        for _ in range(7):
            for rule in OPEN:
                took[rule].append(timed(wire, rule, payloads, size))
        for rule, seconds in took.items():
            rate = 1e-6 * replicas * size / statistics.median(seconds)
            unit = "M numbers a second"
            yield Row("speed", rule, replicas, 0, "none", round(rate, 1), unit)


def timed(wire: Any, rule: str, payloads: Sequence[memoryview], size: int) -> float:
    """Return the seconds of one aggregation, in segments as large as in a swarm."""
    part = torch.empty(size)
    start = time.perf_counter()
    segment = new_aggregation(rule, size, math.sqrt(size))
    for payload in payloads:
        wire.segment_in(payload, part, 0)
        segment.add(part, 1)
    wire.segment_out(segment.result())
    return time.perf_counter() - start


# --- page -----------------------------------------------------------------------------------


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="PART")
    parser.add_argument("--data", default="stdlib")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--lie", default="", choices=["", *TOLD], help="train with this one only")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / "robust.jsonl"
    for part in asked.parts:
        for row in rows_of(part, asked):
            print(row, flush=True)
            with file.open("a") as out:
                out.write(json.dumps(asdict(row) | {"machine": this_machine()}) + "\n")
        (asked.out / "robust.md").write_text(markdown(read(file)))


def rows_of(part: str, asked: argparse.Namespace) -> Iterator[Row]:
    """Measure one part."""
    if part == "errors":
        yield from errors(asked.data)
    if part == "speed":
        yield from speeds(asked.data)
    if part == "loss":
        for seed in range(asked.seed, asked.seed + asked.seeds):
            chosen = [one for one in tries() if asked.lie in ("", one[2])]
            yield from losses(asked.data, asked.steps, seed, chosen)


def read(path: Path) -> list[Row]:
    """Return all rows so far."""
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()]


def markdown(rows: Sequence[Row]) -> str:
    """Return the page; of a figure measured again the newest, of several seeds the median."""
    shown = of_newest(rows)
    newest = {(r.part, r.replicas, r.liars, r.lie, r.rule, r.setting, r.seed): r for r in shown}
    titles = {
        "errors": "Relative error of the mean",
        "loss": "Held-out loss, nats",
        "speed": "An owner's speed, M numbers of contributions a second",
    }
    blocks = []
    for part, title in titles.items():
        here = [row for row in newest.values() if row.part == part]
        columns = list(dict.fromkeys((row.rule, _column(row)) for row in here))
        if not columns:
            continue
        head = " | ".join(f"{rule} {how}".strip() for rule, how in columns)
        lines = [f"| replicas | liars | lie | {head} |", "|" + " ---: |" * (3 + len(columns))]
        for place in dict.fromkeys((row.replicas, row.liars, row.lie) for row in here):
            cells = [_cell(here, place, column) for column in columns]
            lines.append(f"| {' | '.join(map(str, place))} | {' | '.join(cells)} |")
        blocks.append(f"## {title}\n\n" + "\n".join(lines))
    where = f"Machine: {shown[0].machine}.{left_out(rows, shown)}"
    return (
        f"# Robust sums\n\nWritten by `python -m tests.bench.robust`. {__doc__}\n{where}\n\n"
        + "\n\n".join(blocks)
        + "\n"
    )


def _column(row: Row) -> str:
    return row.setting if row.part == "errors" else ""


def _cell(rows: Sequence[Row], place: tuple[int, int, str], column: tuple[str, str]) -> str:
    found = [
        row.value
        for row in rows
        if (row.replicas, row.liars, row.lie) == place and (row.rule, _column(row)) == column
    ]
    return f"{statistics.median(found):g}" if found else "-"


if __name__ == "__main__":
    main()
