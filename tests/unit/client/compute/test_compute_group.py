"""A group of processes is one worker: one ledger, one version, one death."""

import os
import signal
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import trio
from safetensors.numpy import load_file

from client.compute import group as module
from client.compute.process import RequestFailed, Worker, WorkerDied
from client.compute.requests import Load, LoadStart, Ping, Probe, Save
from client.compute.starting import write_start
from client.compute.wire import Wire
from model_zoo.huggingface.imports import Imported
from model_zoo.specs.slices import slices
from protocol.pipeline.effects import (
    ApplyTask,
    BackwardTask,
    ContributeTask,
    ForwardTask,
    LossTask,
    PassTask,
)
from tests.support.compute_stages import (
    Chain,
    of_step,
    open_request,
    opened,
    small_run,
    tokens_of,
)
from tests.support.workers import open_group

pytestmark = pytest.mark.long

TIMEOUT_S = 900


@asynccontextmanager
async def ranks(count: int, timeout_s: int = 60) -> AsyncIterator[Worker]:
    with trio.fail_after(TIMEOUT_S):
        async with open_group([f"cpu:{n}" for n in range(count)], timeout_s) as worker:
            yield worker


async def losses(worker: Worker, step: int) -> list[float]:
    """The losses of a step's microbatches, all given at once."""
    asked = [
        worker.submit(LossTask(step=step, microbatch=m), [tokens_of(m)]) for m in of_step(step)
    ]
    return [(await each.wait())[0].loss_sum for each in asked]


def numbers(shard: bytes, size: int) -> torch.Tensor:
    """The numbers of a contribution in fp32."""
    wire = Wire(small_run([4]), "", 0, torch.device("cpu"))
    out = torch.empty(size)
    wire.segment_in(shard, out, 0)
    return out


@pytest.mark.parametrize("count", [2, 4])
async def test_a_group_makes_the_versions_of_one_process(count: int, tmp_path: Path) -> None:
    alone = opened(0, [4])
    async with ranks(count) as worker:
        await worker.call(open_request(0, [4]))
        for step in range(4):
            found = await losses(worker, step)
            for microbatch, loss in zip(of_step(step), found, strict=True):
                right, _ = alone.call(LossTask(step, microbatch), tokens_of(microbatch))
                assert loss == pytest.approx(right.loss_sum, rel=1e-5)
            applied, _ = await worker.call(ApplyTask(step=step))
            expected, _ = alone.call(ApplyTask(step=step))
            assert applied.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
        await worker.call(Save(version=4, path=str(tmp_path / "group")))
    alone.call(Save(version=4, path=str(tmp_path / "alone")))
    kept, right = load_file(tmp_path / "group"), load_file(tmp_path / "alone")
    assert kept.keys() == right.keys()
    for name in kept:
        np.testing.assert_allclose(kept[name], right[name], rtol=1e-3, atol=1e-5)


async def test_sums_are_added_in_the_order_of_ranks_to_the_bit() -> None:
    async with ranks(3) as worker:
        opening, _ = await worker.call(open_request(0, [4]))
        await losses(worker, 0)
        bounds = [0, opening.parameters]
        reply, (sent,) = await worker.call(ContributeTask(step=0, attempt=0, bounds=bounds))
        assert reply.counted == tuple(of_step(0))
        again, (same,) = await worker.call(ContributeTask(step=0, attempt=1, bounds=bounds))
        assert (again.counted, same) == (reply.counted, sent)
    sums = []
    for rank in range(3):  # dealt out in turn
        of_rank = opened(0, [4])
        for microbatch in list(of_step(0))[rank::3]:
            tokens = tokens_of(microbatch)
            of_rank.call(LossTask(step=0, microbatch=microbatch), tokens)
        sums.append(of_rank.replica.gradient_sum)
    expected = sums[0] + sums[1] + sums[2]
    assert torch.equal(numbers(sent, opening.parameters), expected)


async def test_a_microbatch_stays_where_its_graph_is_and_counts_once() -> None:
    alone, ids = Chain([2, 2]), range(4)
    passed = [alone.run(m) for m in ids]
    async with ranks(2) as worker:
        opening, _ = await worker.call(open_request(0, [2, 2]))
        asked = [worker.submit(ForwardTask(step=0, microbatch=m), [tokens_of(m)]) for m in ids]
        for m, each in zip(ids, asked, strict=True):
            _, (boundary,) = await each.wait()
            assert boundary == passed[m].inputs[1][0]
        for m in ids:  # without the input: only the rank with the graph can do it
            request = BackwardTask(step=0, microbatch=m)
            await worker.call(request, passed[m].gradients)
            with pytest.raises(RequestFailed, match="counted already"):
                await worker.call(request, passed[m].gradients)
        bounds = [0, opening.parameters]
        reply, (sent,) = await worker.call(ContributeTask(step=0, attempt=0, bounds=bounds))
        assert reply.counted == tuple(ids)
        own = alone.sums[0]
        assert torch.allclose(numbers(sent, opening.parameters), own, rtol=1e-4, atol=1e-5)


async def test_microbatches_are_taken_out_before_and_after_sums_are_moved() -> None:
    async with ranks(2) as worker:
        opening, _ = await worker.call(open_request(0, [4]))
        await losses(worker, 0)
        bounds = [0, opening.parameters]
        taken_out = []
        for attempt, m in enumerate((1, 2, 3)):  # of both ranks; then all are at the first
            await worker.call(PassTask(into="less", step=0, microbatch=m), [tokens_of(m)])
            taken_out.append(m)
            with pytest.raises(RequestFailed, match="not counted"):
                await worker.call(PassTask(into="less", step=0, microbatch=m), [tokens_of(m)])
            request = ContributeTask(step=0, attempt=attempt, bounds=bounds)
            reply, (sent,) = await worker.call(request)
            assert reply.counted == tuple(i for i in of_step(0) if i not in taken_out)
        for m in taken_out:  # counted again, by any rank
            await worker.call(LossTask(step=0, microbatch=m), [tokens_of(m)])
        reply, (sent,) = await worker.call(ContributeTask(step=0, attempt=9, bounds=bounds))
        assert reply.counted == tuple(of_step(0))
    alone = opened(0, [4])
    for m in of_step(0):
        alone.call(LossTask(step=0, microbatch=m), tokens_of(m))
    own = alone.replica.gradient_sum
    assert torch.allclose(numbers(sent, opening.parameters), own, rtol=1e-3, atol=1e-4)


async def test_a_loaded_version_is_that_of_all_ranks(tmp_path: Path) -> None:
    alone = opened(0, [4])
    path = str(tmp_path / "version")
    for m in of_step(0):
        alone.call(LossTask(step=0, microbatch=m), tokens_of(m))
    digest = alone.call(ApplyTask(step=0))[0].hash
    alone.call(Save(version=1, path=path))
    async with ranks(2) as worker:
        await worker.call(open_request(0, [4]))
        await losses(worker, 0)  # given up
        loaded, _ = await worker.call(Load(path=path, version=1, expected_hash=digest))
        assert loaded.hash == digest
        found = await losses(worker, 1)
        for m, loss in zip(of_step(1), found, strict=True):
            request = LossTask(step=1, microbatch=m)
            assert (
                loss == alone.call(request, tokens_of(m))[0].loss_sum
            )  # to the bit, on either rank
        with pytest.raises(RequestFailed) as caught:
            await worker.call(Load(path=str(tmp_path / "none"), version=1))
        assert caught.value.kind == "checkpoint"


@pytest.mark.parametrize("victim", [1, 0])
async def test_a_killed_rank_is_the_death_of_the_worker(victim: int) -> None:
    async with ranks(2) as worker:
        await worker.call(open_request(0, [4]))
        pids = worker.pids
        assert len(set(pids)) == 2
        os.kill(pids[victim], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=f"rank {victim} of 2, on cpu:{victim}") as caught:
            await losses(worker, 0)
        assert caught.value.exit_code == -signal.SIGKILL
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_a_rank_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ranks(2) as worker:
        await worker.call(open_request(0, [4]))
        await losses(worker, 0)
        worker._timeout_s = 1  # type: ignore[attr-defined]  # from here on: a busy machine joins late
        monkeypatch.setattr(module, "_MARGIN_S", 1.0)
        pids = worker.pids
        os.kill(pids[1], signal.SIGSTOP)
        with pytest.raises(WorkerDied, match="rank"):
            await worker.call(ApplyTask(step=0))
        with pytest.raises(WorkerDied):
            await worker.call(Ping())
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_ranks_listen_on_loopback_and_meet_in_a_private_folder() -> None:
    async with ranks(2) as worker:
        await worker.call(open_request(0, [4]))
        listening = [
            each.laddr.ip
            for pid in worker.pids
            for each in psutil.Process(pid).net_connections("inet")
            if each.status == psutil.CONN_LISTEN
        ]
        assert listening
        assert set(listening) == {"127.0.0.1"}
        folder = worker._folder  # type: ignore[attr-defined]
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()


async def test_a_card_that_is_not_there_is_named() -> None:
    with trio.fail_after(TIMEOUT_S):
        async with open_group(["cuda:0", "cuda:7"]) as worker:
            with pytest.raises(RequestFailed, match=r"no device 'cuda:[07]'"):
                await worker.call(Probe(sizes=[64]))


async def test_every_rank_has_what_is_frozen_beside_adapters(
    imported: Imported, tmp_path: Path
) -> None:
    start = write_start(imported, slices([4])[0], lambda digest: tmp_path / digest)
    load = LoadStart(path=str(start.path), digest=start.digest)
    alone = opened(0, [4], model="lora", imported=True)
    right, _ = alone.call(load)
    async with ranks(2) as worker:
        await worker.call(open_request(0, [4], model="lora", imported=True))
        loaded, _ = await worker.call(load)
        assert (loaded.version, loaded.hash) == (0, right.hash)
        for m, loss in zip(of_step(0), await losses(worker, 0), strict=True):
            request = LossTask(step=0, microbatch=m)
            assert loss == alone.call(request, tokens_of(m))[0].loss_sum
        assert all(rank.passes for rank in worker.ranks)
