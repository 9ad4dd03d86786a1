"""What a roll-back after an expulsion would give back, and what it would cost.

    python -m tests.bench.undoing [--data TEXT] [--seed 1337] [--out tests/bench/results]

Four replicas of the tiny preset as one stage, as in ``tests.bench.robust``. One lies from step
``FROM`` until it is found out ``UNTIL`` steps later (the slower half of ``tests.bench.attacks``
needed 17 to 47), then an honest one has its place. All runs do the work of 100 steps:

kept: the steps with the lie stay, and the run goes on.
rolled back: the run goes back to the version before the first lie, so the steps since are lost:
``UNTIL`` of them if a checkpoint lies exactly there, up to ``EVERY`` - 1 more if not. What is left
is an honest run of so many steps fewer.

Shown is the held-out loss. What this machine has measured stays. Writes ``undoing.jsonl`` and
``undoing.md``; takes five minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from torch import Tensor

from protocol.rounds.shards import segmented, shard_bounds
from tests.bench.machines import left_out, of_newest, this_machine
from tests.bench.robust import PER_STEP, TOLD, Text, close, compute

REPLICAS, STEPS = 4, 100
FROM, UNTIL, EVERY = 50, 20, 50
"""When the lie begins, how many steps it lasts, and the steps between two checkpoints."""
RULES: Final = ("sum", "centred-clipping")
LIES: Final = ("x -10", "x -1")
BEST, WORST = STEPS - UNTIL, STEPS - UNTIL - EVERY + 1
HEAD = ["rule", "lie", "no lie", "kept", "rolled back", "rolled back, checkpoint far off"]


@dataclass(frozen=True)
class Row:
    """Held-out losses of one rule and lie."""

    rule: str
    lie: str
    honest: float
    kept: float
    best: float
    """Rolled back to a checkpoint exactly before the first lie."""
    worst: float
    """Rolled back to one that lies as far before it as can be."""
    seed: int
    machine: str


def trained(
    text: Text, rule: str, lie: Callable[[Tensor], Tensor], looks: Collection[int]
) -> list[float]:
    """Return the held-out losses after the steps of ``looks``; the last replica lies for a while.

    Args:
        text: of the run.
        rule: by which contributions are aggregated.
        lie: computed from the liar's own contribution.
        looks: steps after which the loss is measured, the last one the run's last.
    """
    workers = [text.opened(rule) for _ in range(REPLICAS)]
    each, found = PER_STEP // REPLICAS, list[float]()
    bounds = segmented(shard_bounds(workers[0].replica.size, [1.0] * (REPLICAS - 1)))
    for step in range(max(looks)):
        for place, worker in enumerate(workers):
            begin = step * PER_STEP + place * each
            compute(worker, text, step, range(begin, begin + each))
        lies = FROM <= step < FROM + UNTIL
        close(workers, step, bounds, each, lie if lies else TOLD["none"])
        if step + 1 in looks:
            found.append(text.held_out_loss(workers[0]))
    return found


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="stdlib")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    asked = parser.parse_args()
    file, text = asked.out / "undoing.jsonl", Text(asked.data, 1, asked.seed)
    for rule in RULES:
        for lie in LIES:
            here = [row for row in read(file) if (row.rule, row.seed) == (rule, asked.seed)]
            here = [row for row in here if row.machine == this_machine()]
            if any(row.lie == lie for row in here):
                continue
            if here:
                worst, best, honest = here[0].worst, here[0].best, here[0].honest
            else:
                worst, best, honest = trained(text, rule, TOLD["none"], (WORST, BEST, STEPS))
            [kept] = trained(text, rule, TOLD[lie], (STEPS,))
            losses = (round(loss, 4) for loss in (honest, kept, best, worst))
            row = Row(rule, lie, *losses, asked.seed, this_machine())
            with file.open("a") as out:
                out.write(json.dumps(asdict(row)) + "\n")
            print(row, flush=True)
    (asked.out / "undoing.md").write_text(markdown(read(file)))


def read(file: Path) -> list[Row]:
    """Return all rows so far."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [Row(**json.loads(line)) for line in lines]


def markdown(rows: Sequence[Row]) -> str:
    """Return the page, of the machine that measured last."""
    shown = of_newest(rows)
    lines = [f"| {' | '.join(HEAD)} |", "| --- | --- |" + " ---: |" * (len(HEAD) - 2)]
    for row in shown:
        losses = (f"{loss:.4f}" for loss in (row.honest, row.kept, row.best, row.worst))
        lines.append(f"| {row.rule} | {row.lie} | {' | '.join(losses)} |")
    return (
        f"# Going on after a lie, or back before it\n\nWritten by `python -m tests.bench.undoing`. "
        f"{__doc__}\nMachine: {shown[0].machine}. Seed {shown[0].seed}.{left_out(rows, shown)}\n\n"
        + "\n".join(lines)
        + "\n"
    )


if __name__ == "__main__":
    main()
