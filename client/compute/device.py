"""Chooses the compute device and measures its speed. State: which devices were tried, and failed.

`cuda` is an NVIDIA GPU, or in a ROCm build of torch an AMD one; `mps` is that of an Apple machine.
"""

import math
import os
import platform
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import psutil
import torch
from msgspec.structs import replace
from torch.nn import functional as F

from client.compute import passes
from client.compute.errors import ShapeError
from client.compute.readings import Readings
from client.compute.replica import Replica, is_out_of_memory
from client.compute.requests import Probe, Probed
from client.compute.wire import StageInput
from client.devices import devices_of, torch_name
from model_zoo.specs.precision import Precision
from model_zoo.threads import limited_threads
from protocol.pipeline.effects import LossTask

_DRIVERS = Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version")
_PROCESSORS = Path("/proc/cpuinfo")
_GPU_SIZES = (4096, 8192)  # smaller ones do not fill all its units
_REPEATS = 5
_LONG_S = 1.0
_SHORT_S = 0.1
"""A microbatch that takes longer has tensors large enough for all threads."""
_AS_FAST, _MUCH_SLOWER = 1.08, 1.2  # the node wants a core as well


def select_device(name: str) -> torch.device:
    """The device of that name; `auto` is the first GPU that can train, else the CPU.

    An NVIDIA or AMD GPU has its number, the first if the name has none: parts of torch want it.
    From here on matrix products in fp32 are computed in fp32. Some of NVIDIA's images turn on TF32,
    whose 10 bits are too few for replicas and auditors to agree.

    Raises:
        ShapeError: this machine has none of that name, or it cannot train; says why.
    """
    torch.set_float32_matmul_precision("highest")
    if name == "auto":
        usable = (kind for kind in _gpus() if not why_not(kind))
        return _numbered(next(usable, "cpu"))
    kind, _, index = name.partition(":")
    if name == "cpu":
        return torch.device(name)
    numbered = kind == "cuda" and index.isdecimal() and int(index) < torch.cuda.device_count()
    if kind not in _gpus() or (index and not numbered):
        raise ShapeError(f"this machine has no device {name!r}{_builds(kind)}")
    if problem := why_not(name):
        raise ShapeError(f"{name} cannot train here: {problem}")
    return _numbered(name)


def select_devices(text: str) -> list[torch.device]:
    """The devices that a text names, the first of which leads; see `select_device`."""
    try:
        names = devices_of(text)
    except ValueError as error:
        raise ShapeError(str(error)) from error
    return [select_device(torch_name(name)) for name in names]


def _numbered(name: str) -> torch.device:
    return torch.device("cuda", 0) if name == "cuda" else torch.device(name)


def _gpus() -> list[str]:
    """The kinds of GPU that this machine has and this build of torch knows."""
    has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [kind for kind, there in has.items() if there]


def _builds(kind: str) -> str:
    """Say that torch was built without such GPUs, if that is why there is none."""
    own = torch.version.cuda or torch.version.hip
    built = torch.backends.mps.is_built() if kind == "mps" else own
    return "" if built else f": torch {torch.__version__} is built without such GPUs"


def platform_of(device: torch.device) -> str:
    """Return whose GPU a device is: `cuda`, `rocm` or `mps`; or `cpu`."""
    return "rocm" if device.type == "cuda" and torch.version.hip else device.type


@cache
def why_not(name: str) -> str:
    """Return why a GPU cannot train, by the words of its first failure; empty: it can.

    An operation that a build of torch lacks, a driver that is too old, and a card that has fallen
    off the bus fail here, before anything is lost by it.
    """
    try:
        with torch.enable_grad():
            _train_a_little(torch.device(name))
    except Exception as error:
        return str(error).partition("\n")[0] or type(error).__name__
    return ""


def _train_a_little(device: torch.device) -> None:
    """Run what every block has forward and back: embedding, norm, attention, loss."""
    weight = torch.ones(16, 16, device=device, requires_grad=True)
    tokens = torch.arange(8, device=device)[None]
    x = F.layer_norm(F.embedding(tokens, weight), (16,))  # (1, 8, 16)
    heads = (x @ weight).view(1, 1, 8, 16)
    attended = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    loss = F.cross_entropy(attended.view(8, 16), tokens[0], reduction="sum")
    torch.autograd.backward(loss)
    if weight.grad is None or not bool(torch.isfinite(weight.grad.cpu()).all()):
        raise RuntimeError("a gradient of it is not finite")


def probe(request: Probe) -> Probed:
    """Measure matrix multiplication in each type of numbers.

    Several devices are one: its speed is that of all, its memory what a stage may take in each.
    """
    devices = select_devices(request.device)
    threads = max(1, request.threads // len(devices))
    probed = [_probe(each, request.sizes, threads) for each in devices]
    first = probed[0]
    shared_by = len(probed) if devices[0].type == "cpu" else 1  # graphics cards have their own
    return replace(
        first,
        threads=request.threads,
        identity="; ".join(each.identity for each in probed),
        peaks={of: math.fsum(each.peaks.get(of, 0.0) for each in probed) for of in first.peaks},
        memory_total_bytes=min(each.memory_total_bytes for each in probed) // shared_by,
        memory_available_bytes=min(each.memory_available_bytes for each in probed) // shared_by,
    )


def _probe(device: torch.device, wanted: list[int], threads: int) -> Probed:
    total, available = memory_bytes(device)
    peaks: dict[Precision, float] = {}
    if wanted:
        sizes = wanted + _large_sizes(device, available)
        with limited_threads(threads):
            peaks["fp32"] = max(_flop_per_s(size, torch.float32, device) for size in sizes)
            if _knows_bf16(device):
                peaks["bf16"] = max(_flop_per_s(size, torch.bfloat16, device) for size in sizes)
    return Probed(
        device=str(device),
        identity=f"{_name(device)}, {total} bytes, torch {torch.__version__}",
        peaks=peaks,
        memory_total_bytes=total,
        memory_available_bytes=available,
        platform=platform_of(device),
        unused={kind: why for kind in _gpus() if (why := why_not(kind))},
    )


def _name(device: torch.device) -> str:
    """Return the make of a device and the version of its driver."""
    if device.type == "cuda":
        drivers = (line for path in _DRIVERS for line in _lines(path)[:1])
        return ", ".join((torch.cuda.get_device_name(device), *drivers))
    if device.type == "mps":  # its driver is the system's
        return f"{platform.machine()}, {platform.release()}"
    found = (line.partition(":") for line in _lines(_PROCESSORS) if line.startswith("model name"))
    model = next((name.strip() for _, _, name in found), platform.machine())
    return f"{os.cpu_count()} x {model}"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _large_sizes(device: torch.device, available_bytes: int) -> list[int]:
    """Return sizes of matrices that only a GPU needs to reach its peak, as far as they fit."""
    if device.type == "cpu":
        return []
    return [size for size in _GPU_SIZES if 4 * 2 * size**2 <= available_bytes // 8]


def _knows_bf16(device: torch.device) -> bool:
    """Whether it multiplies in bf16; older GPUs, and older systems of Apple's, do not. Processors
    all do, the older ones slowly."""
    try:
        one = torch.ones(8, 8, device=device, dtype=torch.bfloat16)
        return float((one @ one).sum()) == 512
    except (RuntimeError, TypeError):
        return False


def memory_bytes(device: torch.device) -> tuple[int, int]:
    """Total and available memory of a device."""
    if device.type == "cuda":
        available, total = torch.cuda.mem_get_info(device)
        return total, available
    if device.type == "mps":  # part of the machine's memory
        total = torch.mps.recommended_max_memory()
        return total, max(0, total - torch.mps.driver_allocated_memory())
    memory = psutil.virtual_memory()
    return int(memory.total), int(memory.available)


def warm_up(replica: Replica) -> float:
    """Run one microbatch of noise: the first one in a process is many times slower than the others,
    and a stage waits for its slowest replica. Returns its seconds; infinite for lack of memory."""
    start = _now(replica.wire.device)
    try:
        _run_noise(replica)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return math.inf
    return _now(replica.wire.device) - start


def useful_threads(replica: Replica, most: int) -> int:
    """Return the best number of threads, at most ``most``, for a microbatch: small tensors gain
    nothing from more, and lose by synchronisation. It is halved while that costs little, within a
    second."""
    if most == 1 or replica.wire.device.type != "cpu":
        return most
    timed: dict[int, float] = {}
    threads, least_s = most, math.inf
    while threads and (not timed or least_s < _SHORT_S):
        with limited_threads(threads):
            timed[threads] = min(warm_up(replica) for _ in range(_REPEATS))
        least_s = min(least_s, timed[threads])
        if timed[threads] > _MUCH_SLOWER * least_s:
            break
        threads //= 2
    return fewest_threads(timed)


def fewest_threads(timed: Mapping[int, float]) -> int:
    """The smallest number of threads that is about as fast as the fastest, by seconds of each."""
    least_s = min(timed.values())
    return min(threads for threads, taken_s in timed.items() if taken_s <= _AS_FAST * least_s)


def _run_noise(replica: Replica) -> None:
    wire = replica.wire
    boundary = torch.randn(wire.boundary_shape, device=wire.device)
    vocab = wire.run.model.vocab
    tokens = torch.randint(vocab, wire.boundary_shape[:2], device=wire.device)
    gradient, x = None, tokens if replica.part.embeds else boundary
    given = StageInput(x, tokens, tokens)
    if replica.part.has_head:
        graph, _ = passes.run_loss(replica, replica.module, given)
    else:
        graph = passes.run_forward(replica.module, given, with_graph=True)
        wire.boundary_out(graph.output, "forward").now()
        gradient = torch.randn_like(graph.output)
    readings = Readings()
    passes.run_back(replica, replica, [(graph, gradient)], LossTask(0, 0), readings)
    readings.read()


def _flop_per_s(size: int, dtype: torch.dtype, device: torch.device) -> float:
    """Return the rate at which square matrices of a size are multiplied."""
    left = torch.randn(size, size, device=device).to(dtype)
    product = torch.empty_like(left)
    return 2 * size**3 / _least_seconds(lambda: torch.mm(left, left, out=product), device)


def _least_seconds(run: Callable[[], object], device: torch.device) -> float:
    """The least of a few runs after one to warm up, or of fewer where one takes long: other
    programs can make a run longer, never shorter."""
    run()
    taken: list[float] = []
    while len(taken) < _REPEATS and sum(taken) < _LONG_S:
        start = _now(device)
        run()
        taken.append(_now(device) - start)
    return min(taken)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()
