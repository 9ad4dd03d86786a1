"""Speed of the wire codecs against a memcpy of the same numbers, one thread, in one run.

Run: python -m tests.bench.codec [--elements N] [--repeats N] [--check]

Prints medians in GB/s of fp32 input and their ratio to memcpy. The targets (encode >= 0.4,
decode >= 0.7) hold for S8 on tensors that do not fit the cache, where memcpy runs at the speed
of the memory; `--check` exits 1 when one is missed. The contenders of a group take turns, memcpy
among them, so that a busy machine slows them alike. Digests are shown apart: they are not part
of the codec.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch

from client.compute.codec import decode, encode
from client.compute.payload import CodecName, Direction, seal

TARGETS = {"s8 encode": 0.4, "s8 decode": 0.7}


Contenders = dict[str, Callable[[], object]]


def contenders(elements: int) -> list[Contenders]:
    """Groups of what is timed, by name; each works on `elements` fp32 numbers."""
    numbers = torch.randn(elements // 1024, 1024)
    copy, outlier = torch.empty_like(numbers), numbers.clone()
    outlier[:, 7] *= 60
    sources: list[list[tuple[str, CodecName, torch.Tensor, Direction]]] = [
        [("s8", "s8", numbers, "forward")],
        [("s8 prescaled", "s8", outlier, "forward"), ("s8 rotated", "s8", outlier, "backward")],
        [("bf16", "bf16", numbers, "forward"), ("fp32", "fp32", numbers, "forward")],
    ]
    groups: list[Contenders] = [{"memcpy": lambda: copy.copy_(numbers)} for _ in sources]
    for group, members in zip(groups, sources, strict=True):
        for member in members:
            group.update(_encode_and_decode(*member, copy))
    return groups


def _encode_and_decode(
    name: str, codec: CodecName, source: torch.Tensor, direction: Direction, target: torch.Tensor
) -> Contenders:
    out = bytearray()
    payload = encode(source, codec, direction=direction, out=out)
    return {
        f"{name} encode": lambda: encode(source, codec, direction=direction, out=out),
        f"{name} decode": lambda: decode(payload, source.shape, out=target),
        f"{name} seal": lambda: seal(payload),
    }


def medians(timed: Contenders, repeats: int) -> dict[str, float]:
    """Median seconds of each contender over interleaved repeats."""
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(repeats + 1):
        for name, run in timed.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken[1:]) for name, taken in seconds.items()}


def main() -> int:
    """Print the table; 1 if --check and a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=8 << 20)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    missed = []
    for group in contenders(arguments.elements):
        taken = medians(group, arguments.repeats)
        for name, seconds in taken.items():
            rate, ratio = arguments.elements * 4 / seconds / 1e9, taken["memcpy"] / seconds
            target = TARGETS.get(name)
            note = "" if target is None else f"  target {target}"
            print(f"{name:20} {rate:6.2f} GB/s  {ratio:5.2f} x memcpy{note}")
            if target is not None and ratio < target:
                missed.append(name)
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
