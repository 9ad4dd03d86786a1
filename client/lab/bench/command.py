"""Measure this machine: compute, memory, codec, loopback. Prints JSON.

Group: try and measure

Three parts: the device (multiply-add rate, copy rate, memory), the wire codecs against a plain
copy, and messages between two processes over loopback. Takes a few seconds; writes nothing.
"""

import statistics
import time
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from client.cli.terminal.output import print_json
from model_zoo.specs.precision import Precision

CODEC_ELEMENTS = 4 << 20
"""16 MiB of fp32: more than most caches hold."""
CODEC_REPEATS = 31
MATRIX_SIZES = [256, 512, 1024]


class DeviceFigures(Struct, frozen=True):
    """The speed of the device."""

    device: str
    flop_per_s: dict[Precision, float]
    """By type of numbers, the best of the matrix sizes."""
    memory_total_bytes: int
    memory_available_bytes: int


class CodecFigures(Struct, frozen=True):
    """One codec on one thread; rates count bytes of fp32 input."""

    encode_bytes_per_s: float
    decode_bytes_per_s: float
    encode_of_copy: float
    """Speed as a share of a plain copy's in the same run."""
    decode_of_copy: float


class LoopbackFigures(Struct, frozen=True):
    """Two processes with real sockets, encryption and multiplexing between them."""

    bytes_per_s: float
    round_trip_ms: float
    connect_s: float


class Figures(Struct, frozen=True):
    """Answer of ``volunteer bench``."""

    device: DeviceFigures
    codecs: dict[str, CodecFigures]
    loopback: LoopbackFigures
    seconds: float
    schema_version: int = 1


def bench(*, device: str = "auto", threads: int = 1) -> None:
    """Measure this machine: compute, memory, codec, loopback. Prints JSON.

    Args:
        device: Where to compute: auto, cpu, cuda, cuda:N or mps.
        threads: CPU threads to compute with.
    """
    from client.lab.bench.loopback import measure_loopback
    from client.limits.cores import check_threads

    check_threads(threads)

    begin = time.monotonic()
    loopback = LoopbackFigures(*measure_loopback())
    figures = Figures(
        device=measure_device(device, threads),
        codecs={name: measure_codec(name) for name in ("s8", "bf16", "fp32")},
        loopback=loopback,
        seconds=time.monotonic() - begin,
    )
    print_json(figures)


def measure_device(device: str, threads: int) -> DeviceFigures:
    """Return multiply-add rates and the memory of a device."""
    from client.compute.device import probe
    from client.compute.errors import ShapeError
    from client.compute.requests import Probe
    from client.errors import ExitCode, UserError

    try:
        found = probe(Probe(sizes=MATRIX_SIZES, device=device, threads=threads))
    except ShapeError as error:
        raise UserError(str(error), "see volunteer doctor", ExitCode.USAGE) from error
    return DeviceFigures(
        device=found.device,
        flop_per_s=found.peaks,
        memory_total_bytes=found.memory_total_bytes,
        memory_available_bytes=found.memory_available_bytes,
    )


def measure_codec(name: Literal["s8", "bf16", "fp32"]) -> CodecFigures:
    """Return the speed of a codec; the contenders take turns, so that load slows all alike."""
    import torch

    from client.compute.codec import begin_decoding, begin_encoding

    torch.set_num_threads(1)
    numbers = torch.randn(CODEC_ELEMENTS // 1024, 1024)
    copy = torch.empty_like(numbers)

    def encode() -> memoryview:
        boundary = begin_encoding(numbers, name, "forward").now()
        boundary.wait()
        return boundary.payload

    payload = encode()
    copied, encoded, decoded = median_seconds(
        lambda: copy.copy_(numbers),
        encode,
        lambda: begin_decoding(payload, numbers.shape, name, "forward", out=copy)[1].now(),
    )
    return CodecFigures(
        encode_bytes_per_s=numbers.nbytes / encoded,
        decode_bytes_per_s=numbers.nbytes / decoded,
        encode_of_copy=copied / encoded,
        decode_of_copy=copied / decoded,
    )


def median_seconds(*contenders: Callable[[], object]) -> list[float]:
    """Return the median duration of each, over interleaved repeats after a warm-up."""
    taken: list[list[float]] = [[] for _ in contenders]
    for _ in range(CODEC_REPEATS + 1):
        for durations, run in zip(taken, contenders, strict=True):
            begin = time.perf_counter()
            run()
            durations.append(time.perf_counter() - begin)
    return [statistics.median(durations[1:]) for durations in taken]
