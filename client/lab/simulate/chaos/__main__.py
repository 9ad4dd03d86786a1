"""Replay one seed, or try many.

python -m client.lab.simulate.chaos --seed N [--count K] [--liar] [--hashes-later]
"""

import argparse
import sys
from collections.abc import Sequence
from typing import get_args

from client.lab.simulate.chaos.config import ChaosConfig, drawn
from client.lab.simulate.chaos.liar import MENU, Lie
from client.lab.simulate.chaos.many import Tally, run_many
from client.lab.simulate.chaos.replay import log_hash, run_once, shrink
from client.lab.simulate.chaos.trial import Trial


def main() -> int:
    """Run a seed, or several, and print the results; 1 if an invariant is broken."""
    parser = argparse.ArgumentParser(prog="python -m client.lab.simulate.chaos")
    parser.add_argument("--seed", type=int, required=True, help="the seed, or the first of many")
    parser.add_argument("--count", type=int, default=1, help="run so many seeds on all cores")
    parser.add_argument("--log", action="store_true", help="print the whole log")
    parser.add_argument("--shrink", action="store_true", help="with as few faults as suffice")
    parser.add_argument("--liar", action="store_true", help="one more member lies about all it can")
    parser.add_argument("--lie", action="append", choices=get_args(Lie), help="... about this only")
    parser.add_argument("--audits", type=float, default=0.0, help="share that is audited: .1")
    parser.add_argument(
        "--hashes-later", action="store_true", help="hash versions beside the next step's passes"
    )
    given = parser.parse_args()
    lies = tuple(given.lie or (MENU if given.liar else ()))
    seeds = range(given.seed, given.seed + given.count)
    configs = [drawn(seed, lies, given.audits, hashes_later=given.hashes_later) for seed in seeds]
    if len(configs) > 1:
        return _many(configs)
    return _one(configs[0], log=given.log, fewest=given.shrink)


def _one(config: ChaosConfig, *, log: bool, fewest: bool) -> int:
    seed = config.seed
    faults = shrink(config) if fewest else None
    world, violation = run_once(config, faults)
    for fault in faults or ():
        print(fault)
    if log:
        print("\n".join(world.log))
    print(violation or f"seed {seed}: holds; {Trial(world).summary()}; log {log_hash(world)}")
    return int(bool(violation))


def _many(configs: Sequence[ChaosConfig]) -> int:
    known, tally = set[int](), Tally()
    for tally in run_many(configs):
        for seed in sorted(tally.failed.keys() - known):
            print(tally.failed[seed], flush=True)
        known |= tally.failed.keys()
    faults = f"{dict(tally.faults)}; seeds that failed: {sorted(tally.failed)}"
    print(f"{tally.runs} seeds, {tally.faults.total()} faults: {faults}")
    if configs[0].lies:
        print(f"lies: {dict(tally.lies)}")
    if configs[0].audits:
        print(f"audits: {dict(tally.audits)}; steps until the liar is out: {_quartiles(tally)}")
        print(f"runs at whose end it was still in: {tally.undiscovered}")
    return int(bool(known))


def _quartiles(tally: Tally) -> str:
    """Return least, middle and most of the steps that liars lasted."""
    steps = sorted(tally.lasted.elements())
    return f"{steps[0]}, {steps[len(steps) // 2]}, {steps[-1]}" if steps else "-"


if __name__ == "__main__":
    sys.exit(main())
