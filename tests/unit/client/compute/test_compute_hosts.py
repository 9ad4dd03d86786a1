"""A group over several hosts is one worker: what it computes, and how it dies and comes back."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
import trio
from safetensors.numpy import load_file

from client.compute.group import open_group
from client.compute.hosts.leading import Hosts
from client.compute.process import Worker, WorkerDied
from client.compute.requests import (
    ApplyLocal,
    ForwardBackward,
    Inside,
    Save,
)
from client.errors import ExitCode
from tests.support.compute_stages import open_request, opened, tokens_of
from tests.support.compute_steps import STEP_TOKENS, of_step
from tests.support.hosts import follow, job, leading

pytestmark = pytest.mark.slow

TIMEOUT_S = 900


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Return the exit code and the words of a process that ends by itself."""
    _, words = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, words.decode()


@asynccontextmanager
async def group(hosts: Hosts, device: str = "cpu") -> AsyncIterator[Worker]:
    async with open_group(device.split(","), 60, hosts) as worker:
        yield worker


def learn(step: int, microbatch: int) -> ForwardBackward:
    return ForwardBackward(step=step, microbatch=microbatch, tokens=tokens_of(microbatch))


async def trained(worker: Worker, steps: range) -> list[float]:
    """Run whole steps; the loss of every microbatch, in order."""
    losses = []
    for step in steps:
        asked = [worker.submit(learn(step, m)) for m in of_step(step)]
        losses += [(await each.wait())[0].loss_sum for each in asked]
        await worker.call(ApplyLocal(step=step, tokens=STEP_TOKENS))
    return losses


@pytest.mark.parametrize(
    ("inside", "device"),
    [
        ("fsdp", "cpu"),
        pytest.param("tp", "cpu", marks=pytest.mark.long),
        pytest.param("replicas", "cpu:0,cpu:1", marks=pytest.mark.long),
    ],
)
async def test_two_hosts_make_the_versions_of_one_process(
    inside: Inside, device: str, tmp_path: Path
) -> None:
    alone, place = opened(0, [4]), job()
    other = follow(place, device=device)
    with trio.fail_after(TIMEOUT_S):
        async with leading(place, device) as hosts, group(hosts, device) as worker:
            count = len(device.split(","))
            await worker.call(open_request(0, [4], inside=inside))
            assert all(rank.host for rank in worker.ranks)
            here = [bool(rank.pid) for rank in worker.ranks]
            assert here == [True] * count + [False] * count
            found = await trained(worker, range(3))
            expected = []
            for step in range(3):
                expected += [alone.call(learn(step, m))[0].loss_sum for m in of_step(step)]
                alone.call(ApplyLocal(step=step, tokens=STEP_TOKENS))
            assert found == pytest.approx(expected, rel=1e-5)
            assert all(rank.passes for rank in worker.ranks)
            await worker.call(Save(version=3, path=str(tmp_path / "group")))
    alone.call(Save(version=3, path=str(tmp_path / "alone")))
    kept, right = load_file(tmp_path / "group"), load_file(tmp_path / "alone")
    assert kept.keys() == right.keys()
    for name in kept:
        np.testing.assert_allclose(kept[name], right[name], rtol=1e-3, atol=1e-5)
    assert ended(other)[0] == ExitCode.OK


@pytest.mark.long
async def test_a_killed_host_is_a_death_and_the_group_forms_anew() -> None:
    place, said = job(), list[str]()
    other = follow(place)
    with trio.fail_after(TIMEOUT_S):
        async with leading(place, explain=said.append) as hosts:
            async with group(hosts) as worker:
                await worker.call(open_request(0, [4]))
                await trained(worker, range(1))
                ranks = psutil.Process(other.pid).children()
                worker.submit(learn(1, of_step(1)[0]))
                other.kill()
                death = await worker.wait_death()
                assert "it was rank 1 of 2, on cpu of" in str(death)
                assert "is gone" in str(death)
                with pytest.raises(WorkerDied):
                    await worker.call(learn(1, of_step(1)[1]))
            assert not any(map(psutil.pid_exists, worker.pids))
            other.communicate()
            assert not psutil.wait_procs(ranks, TIMEOUT_S)[1]
            again = follow(place)
            async with group(hosts) as worker:
                await worker.call(open_request(0, [4]))
                assert len(await trained(worker, range(1))) == len(of_step(0))
    assert said.count("waiting for host 1 of 2 (numbered from 0)") == 2
    assert ended(again)[0] == ExitCode.OK
