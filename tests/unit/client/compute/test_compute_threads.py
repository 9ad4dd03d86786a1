"""Threads of a worker: changed while it runs, asleep while they wait, and of no matter to replicas.

I2: after the broadcast every replica ends with the same bits, however many threads each has.
"""

import os
from pathlib import Path

import pytest
import torch
import trio

from client.compute.device import fewest_threads
from client.compute.requests import Ping
from client.config import Settings
from model_zoo.optimizers.adamw import FlatAdamW
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.threads import limited_threads
from protocol.pipeline.effects import ApplyTask
from tests.support.compute_rounds import (
    accumulate,
    bounds_of,
    contribute_and_reduce,
    decode_task,
    replicas,
)
from tests.support.compute_stages import opened
from tests.support.workers import open_worker

TIMEOUT_S = 60


@pytest.mark.parametrize(
    ("timed", "threads"),
    [
        ({8: 1.0}, 8),
        ({2: 1.0, 1: 1.9}, 2),
        ({2: 1.0, 1: 0.9}, 1),
        ({2: 1.0, 1: 1.02}, 1),  # as fast: a core is left to the node
        ({16: 1.0, 8: 0.8, 4: 0.7, 2: 0.71, 1: 1.0}, 2),
        ({16: 1.0, 8: 1.3}, 16),
    ],
)
def test_no_more_threads_than_are_of_use(timed: dict[int, float], threads: int) -> None:
    assert fewest_threads(timed) == threads


@pytest.mark.parametrize("chosen", [True, False])
def test_a_stage_of_tiny_tensors_finds_out_how_many_are_of_use(chosen: bool) -> None:
    with limited_threads(1):
        worker = opened(
            0, [4], threads=4, settings=Settings(device="cpu", threads=4 * (not chosen))
        )
        found = torch.get_num_threads()
        assert found in ((1, 2, 4) if chosen else (4,))
        assert worker.replica.counted == set()


@pytest.mark.parametrize("codec", ["fp32", "s8"])
def test_replicas_with_other_numbers_of_threads_have_the_same_bits(codec: str) -> None:
    with limited_threads(1):
        members = replicas(3, codec)
        for step in range(2):
            accumulate(members, step)
            bounds, owners = bounds_of(members[0], 3), [0, 1, 2]
            sums, norms = contribute_and_reduce(members, step, 0, bounds, owners)
            hashes = set()
            for count, member in enumerate(members, start=1):
                torch.set_num_threads(count)
                for segment, (payload, norm) in enumerate(zip(sums, norms, strict=True)):
                    member.call(decode_task(segment, norm, step=step), payload)
                apply = ApplyTask(step=step, attempt=0, bounds=bounds, sq_norms=norms)
                hashes.add(member.call(apply, *sums)[0].hash)
            assert len(hashes) == 1


def test_an_update_of_many_parameters_is_the_same_with_any_number_of_threads() -> None:
    size = 3 * (1 << 18) + 12_345  # several pieces, each large enough to be shared by threads
    generator = torch.Generator().manual_seed(7)
    start, gradient = (torch.randn(size, generator=generator) for _ in range(2))
    config = OptimizerSpec(lr=1e-2, min_lr=1e-3, warmup_steps=1, decay_steps=9, beta2=0.95)
    ends = []
    for count in (1, 2, 3, 5):
        with limited_threads(count):
            optimizer = FlatAdamW(start.clone(), size // 2, config)
            for _ in range(3):
                optimizer.step(gradient, 1e-2, 0.37)
            ends.append(optimizer.values)
    assert all(torch.equal(end, ends[0]) for end in ends)


@pytest.mark.slow
async def test_its_users_waiting_policy_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, expected in ((None, "passive"), ("active", "active")):
        if given is None:
            monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        else:
            monkeypatch.setenv("OMP_WAIT_POLICY", given)
        with trio.fail_after(TIMEOUT_S):
            async with open_worker() as worker:
                await worker.call(Ping())  # by then it runs its own program
                variables = Path(f"/proc/{worker.pid}/environ")
                if not variables.exists():
                    pytest.skip("the system does not show a process's environment")
                assert f"OMP_WAIT_POLICY={expected}".encode() in variables.read_bytes().split(b"\0")
    assert os.environ["OMP_WAIT_POLICY"] == "active"
