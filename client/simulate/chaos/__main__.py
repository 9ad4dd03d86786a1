"""Replay one seed: ``python -m client.simulate.chaos --seed N [--log] [--shrink]``."""

from __future__ import annotations

import argparse
import sys

from client.simulate.chaos.config import drawn
from client.simulate.chaos.replay import log_hash, run_once, shrink
from client.simulate.chaos.trial import Trial


def main() -> int:
    """Run a seed and say what came of it; 1 if an invariant is broken."""
    parser = argparse.ArgumentParser(prog="python -m client.simulate.chaos")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--log", action="store_true", help="print the whole log")
    parser.add_argument("--shrink", action="store_true", help="with as few faults as suffice")
    given = parser.parse_args()
    config = drawn(given.seed)
    faults = shrink(config) if given.shrink else None
    world, violation = run_once(config, faults)
    for fault in faults or ():
        print(fault)
    if given.log:
        print("\n".join(world.log))
    print(violation or f"seed {given.seed}: holds; {Trial(world).summary()}; log {log_hash(world)}")
    return int(bool(violation))


sys.exit(main())
