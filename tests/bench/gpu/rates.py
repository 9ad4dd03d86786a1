"""What is installed here, what is missing, and what the device does."""

import argparse
import platform
from importlib import import_module

from tests.bench.gpu.running import Found, cores, tell

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


def rates(asked: argparse.Namespace) -> Found:
    """Import all, and probe the device."""
    missing = {}
    for name in NEEDED:
        try:
            import_module(name)
        except ImportError as error:
            missing[name] = str(error)
    tell(asked, {"missing": missing, "python": platform.python_version(), "cores": cores()})
    from client.compute.device import probe
    from client.compute.requests import Probe

    reply = probe(Probe(sizes=[256, 512], device=asked.device, threads=8))
    return {
        "device": reply.identity,
        "tflops": {of: rate / 1e12 for of, rate in reply.peaks.items()},
        "peak_flop_per_s": reply.peaks["fp32" if asked.device == "cpu" else "bf16"],
    }
