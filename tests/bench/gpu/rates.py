"""What `probe` finds of a device."""

from __future__ import annotations

import argparse

import torch

from client.compute.device import probe
from client.compute.requests import Probe
from tests.bench.gpu.work import Found


def rates(asked: argparse.Namespace) -> Found:
    """Probe the device."""
    reply = probe(Probe(sizes=[256, 512], device=asked.device, threads=8))
    best: dict[str, float] = {}
    for rate in reply.rates:
        best[rate.dtype] = max(rate.flop_per_s, best.get(rate.dtype, 0))
    name = torch.cuda.get_device_name() if asked.device.startswith("cuda") else "cpu"
    return {
        "device": name,
        "torch": torch.__version__,
        "tflops": {dtype: round(rate / 1e12, 2) for dtype, rate in best.items()},
        "copy_gb_s": reply.copy_bytes_per_s / 1e9,
    }
