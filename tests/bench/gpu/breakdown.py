"""Where a worker's time goes, and how it is without sending: all that reaches into the worker."""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from client.compute import wire
from client.compute.readings import Check
from tests.bench.gpu.running import Found
from tests.bench.gpu.work import Work, timed, worker_step
from tests.support.compute_stages import LocalWorker

SHOWN = 12


def breakdown(worker: LocalWorker, one: Work, asked: argparse.Namespace) -> Found:
    """Return what a step of one microbatch spends on the device, by kernel, and how often the
    driver is called: an idle device waits for what starts its kernels, or for a copy."""
    step = worker_step(worker, replace(one, microbatches=1), asked.device)
    wall_s = timed(asked.device, step, 3)
    there = asked.device.startswith("cuda")
    activity = ProfilerActivity.CUDA if there else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiled:
        timed(asked.device, step, 1, warm=0)
    ms, runs, calls = Counter[str](), Counter[str](), Counter[str]()
    for event in profiled.events() or []:
        if there and event.device_type == DeviceType.CPU:
            calls[event.name] += 1
            continue
        ms[event.name[:90]] += event.time_range.elapsed_us() / 1e3
        runs[event.name[:90]] += 1
    return {
        "step_ms": 1e3 * wall_s,
        "busy_ms": sum(ms.values()),
        "kernels": sum(runs.values()),
        "driver calls": dict(calls.most_common(SHOWN)),
        "longest, ms and times": {n: [each, runs[n]] for n, each in ms.most_common(SHOWN)},
    }


@contextmanager
def silenced(made: Mapping[str, memoryview]) -> Iterator[None]:
    """Have workers of this process send what is ``made``, by direction, and encode nothing."""

    def encode(_tensor: object, _codec: str, direction: str, _key: bytes) -> Check[memoryview]:
        return Check(torch.empty(0), lambda _: made[direction])

    with patch.object(wire, "begin_encoding", encode):
        yield
