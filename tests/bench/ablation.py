"""The matching's policies in the same simulated worlds, cell by cell.

Run: python -m tests.bench.ablation [--cells 50/8,500/32] [--churn 0,20] [--seeds 3] [--hours 3]
     [--policies ours,random] [--jobs 1]

A cell is n/S, the churn in percent an hour; every world (cell, churn, seed) is drawn once and shown
to all policies. Prints a line of JSON for each run: its world, its policy, and its share, which is
the integral of the throughput over that of the best placement, from a cold start.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import msgspec

from client.lab.simulate.market.catalogue import POLICIES, compare
from client.lab.simulate.market.nature import draw
from client.lab.simulate.market.setting import Setting

CELLS = ("50/8", "50/32", "500/8", "500/32", "5000/32")
CHURN_PERCENT = ("0", "5", "20", "50")


def worlds(asked: argparse.Namespace) -> Iterator[Setting]:
    """Yield every world that is asked for, small ones first."""
    seeds = range(asked.seeds)
    for cell, seed, percent in itertools.product(asked.cells, seeds, asked.churn):
        volunteers, stages = map(int, cell.split("/"))
        yield Setting(volunteers, stages, float(percent) / 100, asked.hours, seed)


def lines(setting: Setting, policies: Sequence[str]) -> list[str]:
    """Run the policies in a world (a task of a process pool)."""
    world = msgspec.to_builtins(setting)
    return [
        json.dumps({**world, "policy": figures.policy, "share": figures.share})
        for figures in compare(draw(setting), policies)
    ]


def _several(text: str) -> list[str]:
    return text.split(",")


def main(given: Sequence[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=_several, default=CELLS)
    parser.add_argument("--churn", type=_several, default=CHURN_PERCENT)
    parser.add_argument("--policies", type=_several, default=list(POLICIES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hours", type=float, default=3.0)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args(given)
    if unknown := [policy for policy in asked.policies if policy not in POLICIES]:
        parser.error(f"no such policy: {', '.join(unknown)}; choose from {', '.join(POLICIES)}")
    with ProcessPoolExecutor(asked.jobs) as pool:
        run = partial(lines, policies=asked.policies)
        for found in pool.map(run, worlds(asked)):
            print("\n".join(found), flush=True)


if __name__ == "__main__":
    main()
