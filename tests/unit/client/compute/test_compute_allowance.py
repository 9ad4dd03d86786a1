"""The owner's memory limits inside a worker: it is held to them while it runs."""

import resource
import sys

import msgspec
import pytest
import torch
import trio

from client.compute import allowance
from client.compute.memory import Holding
from client.compute.process import RequestFailed, open_worker
from client.compute.requests import OpenStage, Probe
from protocol.pipeline.effects import LossTask
from tests.support.compute_stages import LocalWorker, open_request, tokens_of


def needed_bytes() -> int:
    request = open_request(0, [4])
    need = Holding(
        model=request.model,
        layers_per_stage=request.layers_per_stage,
        stage=request.stage,
        sequences=request.sequences,
        tokens=request.tokens,
        graphs_kept=request.graphs_kept,
        averaging_codec=request.averaging_codec,
        state=request.state,
    ).need
    return need.total_bytes


def limited(size_bytes: int, **changes: object) -> OpenStage:
    return msgspec.structs.replace(open_request(0, [4]), memory_bytes=size_bytes, **changes)


def test_a_gpu_is_held_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[float, torch.device]] = []
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda fraction, device: set_to.append((fraction, device)),
    )
    device = torch.device("cuda:1")
    allowance.enforce(limited(0, vram_share=40), device)
    assert set_to == [(0.4, device)]
    allowance.enforce(limited(0, vram_share=40), torch.device("cpu"))
    assert len(set_to) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_process_that_does_other_things_is_not_limited() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    LocalWorker().call(limited(needed_bytes()))
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.slow
async def test_a_worker_takes_no_more_than_it_may_and_goes_on() -> None:
    with trio.fail_after(60):
        async with open_worker() as worker:
            await worker.call(Probe(sizes=[8], device="cpu"))  # without a limit there is room
            await worker.call(limited(needed_bytes()))
            with pytest.raises(RequestFailed) as caught:
                await worker.call(Probe(sizes=[8192], device="cpu"))  # two of 256 MiB
            assert caught.value.kind == "oom"
            reply, _ = await worker.call(LossTask(0, 0), [tokens_of(0)])
            assert reply.loss_sum > 0
