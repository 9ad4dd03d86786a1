"""Speed of the wire codecs against a memcpy of the same numbers, one thread, in one run.

Run: python -m tests.bench.codec [--mib 2 16 32] [--repeats N] [--json] [--check]

Prints medians in GB/s of fp32 input and their ratio to memcpy. The targets hold for S8 on tensors
of every size: 2 MiB, where memcpy runs in the cache, as well as 32, where it runs at the speed of
the memory; `--check` exits 1 when one is missed. The contenders of a group take turns in random
order, memcpy among them, so that a busy machine slows them alike; a turn is one call, or as many as
make 8 MiB. What torch does without the kernel is timed too; it says nothing of a GPU. Digests
(seal) are no part of the codec: shown apart.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch

from client.compute import native
from client.compute.codec import decode, encode
from client.compute.native import KERNEL
from client.compute.payload import Direction, seal
from model_zoo.specs.codec import Codec

TARGETS = {"s8 encode": 0.8, "s8 decode": 0.9}
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
    target: float | None

    @property
    def missed(self) -> bool:
        """Whether there is a target, and it is not reached."""
        return self.target is not None and self.of_copy < self.target

    def __str__(self) -> str:
        note = "" if self.target is None else f"  target {self.target}"
        rate = self.bytes_per_s / 1e9
        return f"{self.mib:3} MiB  {self.name:20} {rate:6.2f} GB/s  {self.of_copy:5.2f} x{note}"


def contenders(mib: int) -> list[Contenders]:
    """Groups of what is timed, by name; each works on so many MiB of fp32 numbers."""
    numbers = torch.randn(mib * (1 << 20) // 4 // CHANNELS, CHANNELS)
    copy, outlier = torch.empty_like(numbers), numbers.clone()
    outlier[:, 7] *= 60
    sources: list[list[tuple[str, torch.Tensor, Direction]]] = [
        [("s8", "s8", numbers, "forward")],
        [("s8 prescaled", "s8", outlier, "forward"), ("s8 rotated", "s8", outlier, "backward")],
        [("bf16", "bf16", numbers, "forward"), ("fp32", "fp32", numbers, "forward")],
    ]
    groups: list[Contenders] = [{"memcpy": lambda: copy.copy_(numbers)} for _ in sources]
    for group, members in zip(groups, sources, strict=True):
        for member in members:
            group.update(_encode_and_decode(*member, copy))
    there: Contenders = {"memcpy": lambda: copy.copy_(numbers)}
    conditioned: list[tuple[str, torch.Tensor, Direction]] = [
        ("s8", numbers, "forward"),
        ("s8 prescaled", outlier, "forward"),
        ("s8 rotated", outlier, "backward"),
    ]
    for name, source, direction in conditioned:
        alike = _encode_and_decode(name, "s8", source, direction, copy)
        coding = {one: run for one, run in alike.items() if not one.endswith("seal")}
        there |= {f"{one}, by torch": _by_torch(run) for one, run in coding.items()}
    return [*groups, there, _coarse(numbers)]


def _coarse(numbers: torch.Tensor) -> Contenders:
    """Codecs of four bits and less, in operations of torch beside those of s8."""
    target, vector = torch.empty_like(numbers), numbers.view(-1)
    found: Contenders = {"memcpy": lambda: target.copy_(numbers)}
    for way in ("forward", "backward"):
        found |= _encode_and_decode(f"s4 {way}", "s4", numbers, way, target)
    for codec in ("q4", "q3", "q2"):
        found |= _encode_and_decode(codec, codec, vector, "average", target.view(-1))
    return {name: run for name, run in found.items() if not name.endswith("seal")}


def _by_torch(run: Callable[[], object]) -> Callable[[], object]:
    """Return what codes in operations of torch, as on a GPU."""

    def without_kernel() -> None:
        variants, native.VARIANTS = native.VARIANTS, []
        try:
            run()
        finally:
            native.VARIANTS = variants

    return without_kernel


def _encode_and_decode(
    name: str,
    coded: Codec,
    source: torch.Tensor,
    direction: Direction,
    target: torch.Tensor,
) -> Contenders:
    out = bytearray()
    payload = encode(source, coded, direction=direction, out=out)
    return {
        f"{name} encode": lambda: encode(source, coded, direction=direction, out=out),
        f"{name} decode": lambda: decode(payload, source.shape, out=target),
        f"{name} seal": lambda: seal(payload),
    }


def medians(timed: Contenders, calls: int, repeats: int) -> dict[str, float]:
    """Median seconds a call of each contender takes, over interleaved turns of so many calls."""
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
    """Figures of all contenders at one size."""
    for group in contenders(mib):
        taken = medians(group, max(1, TURN_MIB // mib), repeats)
        for name, seconds in taken.items():
            of_copy = taken["memcpy"] / seconds
            yield Figure(mib, name, mib * (1 << 20) / seconds, of_copy, TARGETS.get(name))


def main() -> int:
    """Print the table; 1 if --check and a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, nargs="+", default=[2, 16, 32])
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.json:
        print(f"kernel: {KERNEL}; ratios to memcpy of the same numbers")
    figures = []
    for mib in arguments.mib:
        for figure in measure(mib, arguments.repeats):
            figures.append(figure)
            if not arguments.json:
                print(figure, flush=True)
    if arguments.json:
        print(json.dumps({"kernel": KERNEL, "figures": [asdict(figure) for figure in figures]}))
    return 1 if arguments.check and any(figure.missed for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
