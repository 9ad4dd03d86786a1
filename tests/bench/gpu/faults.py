"""Errors, and what is said of them."""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch

from protocol.pipeline.effects import LossTask
from tests.bench.gpu.work import CALL_S, Found, work
from tests.support.compute_stages import LocalWorker


def faults(asked: argparse.Namespace) -> Found:
    """Provoke errors and keep what is said."""
    told: Found = {}
    one = work("gpt2", small=True)
    for device in (f"{asked.device}:7", "mps"):
        told[device] = LocalWorker(limit_s=CALL_S).ask(one.opening(device))[0].message
    if asked.device.startswith("cuda"):
        large = replace(work("gpt2", small=asked.small), sequences=512)
        worker = LocalWorker(limit_s=CALL_S)
        worker.call(large.opening(asked.device))
        before = worker.replica.state_hash()
        hold = torch.empty(
            int(torch.cuda.mem_get_info()[0] * 0.95), dtype=torch.uint8, device=asked.device
        )
        reply, _ = worker.ask(LossTask(step=0, microbatch=0), large.sample(0))
        told["out of memory"] = str(reply)[:400]
        del hold
        told["state is unchanged"] = worker.replica.state_hash() == before
        small = replace(large, sequences=512)
        reply, _ = worker.ask(LossTask(step=0, microbatch=1), small.sample(1))
        told["afterwards"] = str(reply)[:300]
    return told
