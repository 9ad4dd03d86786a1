"""How long a stage stands still whose replicas sleep often and soon wake, as laptops do.

    python -m tests.bench.naps [--seeds 24] [--replicas 3]

Simulated: one stage, sixty naps of 1.5 to 9 s in about twelve minutes, on virtual time, so every
machine counts the same. A nap that others take for a loss costs 5 s and 6 s more to look around; a
standstill is all that is longer than both. Uses all cores; about ten seconds a seed and core.
"""

from __future__ import annotations

import argparse
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Final

from tests.support.naps import standstills

USUAL_S: Final = 12.0
LONG_S: Final = 50.0


def main() -> None:
    """Run the seeds and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--replicas", type=int, default=3)
    given = parser.parse_args()
    stood = list[float]()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        runs = pool.map(partial(standstills, replicas=given.replicas), range(given.seeds))
        for seed, times in enumerate(runs):
            unusual = [s for s in times if s > USUAL_S]
            stood += unusual
            print(
                f"seed {seed}: {len(unusual)} standstills, longest {max(times):.0f} s", flush=True
            )
    long = sum(s > LONG_S for s in stood)
    usual, most = statistics.median(stood or [0.0]), max(stood, default=0.0)
    print(
        f"{given.seeds} runs of {given.replicas}: {len(stood)} standstills of more than "
        f"{USUAL_S:.0f} s, {sum(stood):.0f} s in all; median {usual:.0f} s, longest {most:.0f} s; "
        f"{long} of more than {LONG_S:.0f} s"
    )


if __name__ == "__main__":
    main()
