"""What is installed here, what is missing, and what the device does."""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from importlib import import_module

from tests.bench.gpu.running import REPOSITORY, Found, cores, tell

NEEDED = (
    "client.cli.commands.join",
    "client.cli.main",
    "client.node.node",
    "client.compute.executor",
    "model_zoo.export",
    "tests.bench.gpu.swarm",
    "tests.support.compute_stages",
    "miniupnpc",
    "pynvml",
    "tokenizers",
    "docstring_parser",
    "hypothesis",
    "packaging",
    "pytest_trio.plugin",
    "rich.markdown",
)
"""What the parts run, or their volunteers, or the tests: it imports the rest."""
BUILD_S = 20.0


def rates(asked: argparse.Namespace) -> Found:
    """Import all, build the C kernel, which a bare checkout has not, and probe the device."""
    missing = {}
    for name in NEEDED:
        try:
            import_module(name)
        except ImportError as error:
            missing[name] = str(error)
    tell(asked, {"missing": missing, "python": platform.python_version(), "cores": cores()})
    from client.compute.device import probe
    from client.compute.native import VARIANTS
    from client.compute.requests import Probe

    tell(asked, {"kernel": VARIANTS or built()})
    reply = probe(Probe(sizes=[256, 512], device=asked.device, threads=8))
    best: dict[str, float] = {}
    for rate in reply.rates:
        best[rate.dtype] = max(rate.flop_per_s, best.get(rate.dtype, 0))
    return {
        "device": reply.identity,
        "tflops": {dtype: rate / 1e12 for dtype, rate in best.items()},
        "copy_gb_s": reply.copy_bytes_per_s / 1e9,
        "peak_flop_per_s": best["float32" if asked.device == "cpu" else "bfloat16"],
    }


def built() -> str:
    """Build the kernel beside its source; return what came of it. Without it torch does the same,
    slower, with what is in the processor's memory."""
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    if list((REPOSITORY / "client" / "compute").glob("_s8.*.so")):
        return "built now"
    return "torch, " + (done.stderr.strip().splitlines() or ["for there is no compiler"])[-1]
