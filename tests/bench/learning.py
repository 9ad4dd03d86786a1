"""How well local rounds learn: held-out loss at equal tokens, by the product's own executors.

Run: python -m tests.bench.learning [--method exact local] [--shape S W] [--steps 5120] [--seeds 1]
     [--optimizer muon adamw] [--lr 0.01] [--replicas 4 8] [--codec q2 q3]
     [--microbatches 16] [--inner-microbatches 1] [--rule sum] [--liar zero] [--drop 0.1]
     [--out FOLDER]

`exact`: one process takes every step; `local`: the replicas of one stage train in local rounds.
All combinations of the values are run. What would cross a wire is encoded and decoded, and nothing
is sent. `--steps` counts 1,024 tokens each: an exact step, or one microbatch of every replica;
`--microbatches` of every replica are a round, and it takes an inner step after each
`--inner-microbatches`. With `--liar` the last replica changes what it contributes; with `--drop`
every replica misses that share of the rounds, and what it has learned in them is lost. The text is
that of Python's standard library, as bytes.

Finished runs are lines of learning.jsonl and are not made again, so a long sweep can be cut. Then
the table is written: learning.md.
"""

import argparse
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import torch
from msgspec.structs import replace

from model_zoo.datasets.corpus import Corpus
from tests.bench.learning_runs import LOCAL, RATES, SHAPES, STEP_TOKENS, Result, Run, train
from tests.support.texts import corpus_of

METHODS = ("exact", "local")
EXACT = Run("exact", "", 0, 0, "muon", RATES["muon"])


def read(path: Path) -> list[Result]:
    """Return the finished runs."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Result) for line in lines]


def finished(runs: Iterable[Run], corpus: Corpus, path: Path) -> Iterator[Result]:
    """Make the runs that are not there yet, and keep each; return the results of all."""
    known = {result.run: result for result in read(path)}
    for run in runs:
        if run not in known:
            known[run] = train(run, corpus)
            with path.open("ab") as out:
                out.write(msgspec.json.encode(known[run]) + b"\n")
        yield known[run]


def wanted(asked: argparse.Namespace) -> list[Run]:
    """Every combination of what is asked for, each once; the exact runs first."""
    found = dict[Run, None]()
    for shape, seed, optimizer, lr in itertools.product(
        asked.shape, range(asked.seeds), asked.optimizer, asked.lr
    ):
        exact = Run("exact", shape, asked.steps, seed, optimizer, lr or RATES[optimizer])
        found[exact] = None
        for values in itertools.product(*(getattr(asked, name) for name in LOCAL)):
            settings = dict(zip(LOCAL, values, strict=True))
            found[replace(exact, method="local", **settings)] = None
    runs = [run for run in found if run.method in asked.method]
    return sorted(runs, key=lambda run: METHODS.index(run.method))


def against(result: Result, results: Iterable[Result]) -> float:
    """How much larger its loss is than that of exact Muon, same shape, length and seed."""
    run = result.run
    same = replace(EXACT, shape=run.shape, steps=run.steps, seed=run.seed)
    found = (other.held_out for other in results if other.run == same)
    return result.held_out / next(found, math.nan) - 1


def markdown(results: Iterable[Result]) -> str:
    """Return the page: a table of each shape and length, the best first."""
    tables: dict[tuple[str, int], list[Result]] = {}
    for result in results:
        tables.setdefault((result.run.shape, result.run.steps), []).append(result)
    blocks = [_table(*key, found) for key, found in sorted(tables.items())]
    return "\n\n".join(["# Learning in local rounds", __doc__, *blocks]) + "\n"


def _table(shape: str, steps: int, results: Sequence[Result]) -> str:
    spec, of_run = SHAPES[shape], dict[Run, list[Result]]()
    for result in results:
        of_run.setdefault(replace(result.run, seed=0), []).append(result)
    rows = sorted(of_run.items(), key=lambda row: statistics.mean(r.held_out for r in row[1]))
    return "\n".join(
        [
            f"## {spec.layers} layers, width {spec.width}, {steps} steps of {STEP_TOKENS} tokens",
            "",
            "| run | held-out | against exact Muon | bytes a parameter and 1,000 tokens | "
            "seeds | after each quarter | CPU s | code |",
            "| --- " * 8 + "|",
            *(_row(run, found, results) for run, found in rows),
        ]
    )


def _row(run: Run, found: Sequence[Result], results: Sequence[Result]) -> str:
    loss = statistics.mean(result.held_out for result in found)
    apart = statistics.mean(against(result, results) for result in found)
    cells = (
        run.name,
        f"{loss:.4f}",
        "-" if math.isnan(apart) else f"{apart:+.2%}",
        f"{run.sent:.3f}",
        " ".join(f"{result.held_out:.4f}" for result in found),
        " ".join(f"{loss:.3f}" for loss in found[0].curve),
        f"{found[-1].seconds:.0f}",
        found[-1].code,
    )
    return f"| {' | '.join(cells)} |"


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=5120)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    parser.add_argument("--method", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["S"])
    for name, usual in {"optimizer": "muon", "lr": 0.0, **LOCAL}.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=type(usual), nargs="+", default=[usual], dest=name)
    return parser.parse_args(words)


def main() -> None:
    """Make the runs that are missing, and write the page."""
    torch.set_num_threads(1)
    asked = parsed()
    file = asked.out / "learning.jsonl"
    for result in finished(wanted(asked), corpus_of("stdlib"), file):
        print(f"{result.held_out:.4f}  {result.run.shape}  {result.run.name}", flush=True)
    (asked.out / "learning.md").write_text(markdown(read(file)))


if __name__ == "__main__":
    main()
