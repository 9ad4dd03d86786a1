"""Whether replicas, recomputed microbatches and codecs have the same bits."""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from torch import Tensor

from client.compute.codec import decode, encode
from protocol.pipeline.effects import ApplyTask, BackwardTask, ForwardTask
from tests.bench.gpu.running import Found
from tests.bench.gpu.work import CALL_S, payloads, work
from tests.support.compute_stages import LocalWorker


def repeats(asked: argparse.Namespace) -> Found:
    """Compare bits."""
    one = work("gpt2", small=asked.small)
    half = one.spec.layers // 2
    one = replace(one, layers_per_stage=(half, one.spec.layers - half), sequences=4)
    _, gradient = payloads(one, asked.device)
    told: Found = {}
    hashes = []
    for keep in (True, True, False):
        worker = LocalWorker(limit_s=CALL_S)
        worker.call(one.opening(asked.device))
        outputs = []
        for number in range(2):
            _, (sent, *_) = worker.call(ForwardTask(step=0, microbatch=number), one.sample(number))
            if not keep:
                worker.replica.drop_graphs()
            worker.call(BackwardTask(step=0, microbatch=number), gradient, one.sample(number))
            outputs.append(bytes(sent))
        total = worker.replica.gradient_sum.double().cpu()
        reply, _ = worker.call(ApplyTask(step=0))
        hashes.append((outputs, total, reply.hash or worker.replica.state_hash()))
    kept, again, rerun = hashes
    told["two replicas: outputs equal"] = kept[0] == again[0]
    told["two replicas: version equal"] = kept[2] == again[2]
    told["two replicas: gradients apart"] = _apart(kept[1], again[1])
    told["recomputed: outputs equal"] = kept[0] == rerun[0]
    told["recomputed: version equal"] = kept[2] == rerun[2]
    told["recomputed: gradients apart"] = _apart(kept[1], rerun[1])
    numbers = torch.randn(512, 768)
    for name in ("s8", "bf16", "fp32"):
        here = bytes(encode(numbers, name, direction="forward"))
        there = bytes(encode(numbers.to(asked.device), name, direction="forward"))
        told[f"{name} bytes equal the processor's"] = here == there
        back = decode(here, numbers.shape, device=torch.device(asked.device)).cpu()
        told[f"{name} numbers equal the processor's"] = bool(
            torch.equal(back, decode(here, numbers.shape))
        )
    return told


def _apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / ours.norm())
