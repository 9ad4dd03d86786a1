"""The owner's memory limits inside a worker: refused beforehand, and held to while it runs."""

import resource
import sys

import msgspec
import pytest
import torch
import trio

from client.compute import allowance
from client.compute.errors import OutOfMemory
from client.compute.memory import held_parameters
from client.compute.process import RequestFailed, open_worker
from client.compute.requests import ForwardBackward, OpenStage, Probe
from tests.support.compute_stages import LocalWorker, open_request, tokens_of

MIB = 1 << 20


def limited(size_bytes: int, **changes: object) -> OpenStage:
    return msgspec.structs.replace(open_request(0, [4]), memory_bytes=size_bytes, **changes)


def test_a_stage_that_would_not_fit_is_refused() -> None:
    need = allowance.stage_need(open_request(0, [4])).total_bytes
    failed = LocalWorker().fails(limited(need - 1))
    assert failed.kind == "oom"
    assert "may be used" in failed.message


def test_delayed_updates_need_more() -> None:
    need = allowance.stage_need(open_request(0, [4])).total_bytes
    allowance.check_fits(limited(need))
    assert LocalWorker().fails(limited(need, delayed=True)).kind == "oom"


def test_a_z_loss_needs_the_logits_once_more_where_the_stage_is_cut() -> None:
    plain = limited(0, ranks=2)
    optimizer = msgspec.structs.replace(plain.optimizer, z_loss=1e-4)
    more = allowance.stage_need(msgspec.structs.replace(plain, optimizer=optimizer))
    assert more.head_bytes > allowance.stage_need(plain).head_bytes


def test_the_ranks_of_a_cut_stage_stay_within_the_limit_together() -> None:
    """The first one keeps more beside its shards, and gets what the others leave."""
    cut = {"ranks": 3}
    shards = allowance.needed_bytes(limited(0, **cut, follows=True))
    enough = allowance.needed_bytes(limited(0, **cut)) + 2 * shards
    first, other = limited(enough, **cut), limited(enough, **cut, follows=True)
    beside = allowance.stage_need(limited(0, **cut)).offloaded_bytes
    part = 4 * held_parameters(first.model, [4], 0, ranks=3)
    assert 0 <= enough - (3 * shards + beside - part) < 3, "its sum is counted once"
    assert allowance.own_limit(first) + 2 * allowance.own_limit(other) == enough
    allowance.check_fits(first)
    allowance.check_fits(other)
    with pytest.raises(OutOfMemory, match="may be used"):
        allowance.check_fits(limited(enough - 1, **cut))
    card = limited(3 * shards, **cut, device="cuda:0")  # the rest is in its host's memory
    assert allowance.own_limit(card) == shards
    allowance.check_fits(card)


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
    LocalWorker().call(limited(allowance.stage_need(open_request(0, [4])).total_bytes))
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.slow
async def test_a_worker_takes_no_more_than_it_may_and_goes_on() -> None:
    with trio.fail_after(60):
        async with open_worker() as worker:
            await worker.call(Probe(sizes=[8], device="cpu"))  # without a limit there is room
            need = allowance.stage_need(open_request(0, [4])).total_bytes
            await worker.call(limited(need))
            with pytest.raises(RequestFailed) as caught:
                await worker.call(Probe(sizes=[8192], device="cpu"))  # two of 256 MiB
            assert caught.value.kind == "oom"
            request = ForwardBackward(step=0, microbatch=0, tokens=tokens_of(0))
            reply, _ = await worker.call(request)
            assert reply.tokens == 48
