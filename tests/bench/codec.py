"""Speed of S8 against a memcpy of the same numbers, one thread, in one run.

Run: python -m tests.bench.codec [--mib 2 16 32] [--repeats N] [--json]

Prints medians in GB/s of fp32 input and their ratio to memcpy: at 2 MiB memcpy runs in the cache,
at 32 at the speed of the memory. The contenders take turns in random order, memcpy among them, so
that a busy machine slows them alike; a turn is one call, or as many as make 8 MiB.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch

from client.compute.codec import decode, encode

CHANNELS = 1024
TURN_MIB = 8

Contenders = dict[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Figure:
    """One contender at one size; rates count bytes of fp32 input."""

    mib: int
    name: str
    bytes_per_s: float
    of_copy: float

    def __str__(self) -> str:
        rate = self.bytes_per_s / 1e9
        return f"{self.mib:3} MiB  {self.name:20} {rate:6.2f} GB/s  {self.of_copy:5.2f} x"


def contenders(mib: int) -> Contenders:
    """Return what is timed, by name; each works on so many MiB of fp32 numbers."""
    numbers = torch.randn(mib * (1 << 20) // 4 // CHANNELS, CHANNELS)
    copy = torch.empty_like(numbers)
    payload = encode(numbers, "s8", direction="forward")
    return {
        "memcpy": lambda: copy.copy_(numbers),
        "s8 encode": lambda: encode(numbers, "s8", direction="forward"),
        "s8 decode": lambda: decode(payload, numbers.shape, out=copy),
    }


def medians(timed: Contenders, calls: int, repeats: int) -> dict[str, float]:
    """Return the median seconds a call of each takes, over interleaved turns of so many calls."""
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    order, generator = list(timed), random.Random(0)
    for _ in range(repeats):
        generator.shuffle(order)
        for name in order:
            run = timed[name]
            run()
            start = time.perf_counter()
            for _ in range(calls):
                run()
            seconds[name].append((time.perf_counter() - start) / calls)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def measure(mib: int, repeats: int) -> Iterator[Figure]:
    """Yield figures of all contenders at one size."""
    taken = medians(contenders(mib), max(1, TURN_MIB // mib), repeats)
    for name, seconds in taken.items():
        yield Figure(mib, name, mib * (1 << 20) / seconds, taken["memcpy"] / seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, nargs="+", default=[2, 16, 32])
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    figures = [figure for mib in asked.mib for figure in measure(mib, asked.repeats)]
    if asked.json:
        print(json.dumps({"figures": [asdict(figure) for figure in figures]}))
        return
    print("ratios to memcpy of the same numbers", *figures, sep="\n")


if __name__ == "__main__":
    main()
