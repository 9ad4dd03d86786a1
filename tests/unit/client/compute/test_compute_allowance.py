"""The owner's limits inside a worker: its memory, and its share of the computing time."""

import resource
import sys
from types import SimpleNamespace

import msgspec
import pytest
import torch
import trio

from client.compute import allowance
from client.compute.allowance import Throttle
from client.compute.process import RequestFailed
from client.compute.requests import OpenStage, Probe
from client.config import Settings
from protocol.pipeline.effects import LossTask
from tests.support.compute_stages import LocalWorker, need_of, open_request, tokens_of
from tests.support.workers import open_worker


def limited() -> OpenStage:
    """A stage that may take what it needs, and no more."""
    request = open_request(0, [4])
    limits = Settings(device="cpu", threads=1, memory_limit_bytes=need_of(request).total_bytes)
    return msgspec.structs.replace(request, settings=limits)


@pytest.mark.parametrize("name", ["cuda:1", "mps", "cpu"])
def test_a_gpu_is_held_to_its_share(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    set_to: list[tuple[object, ...]] = []
    for module in (torch.cuda, torch.mps):
        monkeypatch.setattr(
            module, "set_per_process_memory_fraction", lambda *given: set_to.append(given)
        )
    device = torch.device(name)
    allowance.enforce(open_request(0, [4], vram_share=40), device)
    assert set_to == {"cuda:1": [(0.4, device)], "mps": [(0.4,)], "cpu": []}[name]


@pytest.mark.parametrize("reruns", [True, False])
def test_where_blocks_run_twice_memory_is_given_back_at_once(
    monkeypatch: pytest.MonkeyPatch, reruns: bool
) -> None:
    given_back: list[bool] = []
    monkeypatch.setattr(allowance, "give_back_at_once", lambda: given_back.append(True))
    allowance.enforce(open_request(0, [4], reruns_blocks=reruns), torch.device("cpu"))
    assert given_back == [True] * reruns


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_process_that_does_other_things_is_not_limited() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    LocalWorker().call(limited())
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.slow
async def test_a_worker_takes_no_more_than_it_may_and_goes_on() -> None:
    with trio.fail_after(60):
        async with open_worker() as worker:
            await worker.call(Probe(sizes=[8], device="cpu"))  # without a limit there is room
            await worker.call(limited())
            with pytest.raises(RequestFailed) as caught:
                await worker.call(Probe(sizes=[8192], device="cpu"))  # two of 256 MiB
            assert caught.value.kind == "oom"
            reply, _ = await worker.submit(LossTask(0, 0), [tokens_of(0)]).wait()
            assert reply.loss_sum > 0


@pytest.mark.parametrize(
    ("share", "on_cpu", "busy_s", "waiting_s", "takes_s"),
    [
        (100, True, 2.0, 1.0, 3.0),
        (50, True, 2.0, 0.0, 4.0),
        (25, True, 2.0, 3.0, 8.0),  # the machine was busy: it rested already
        (25, True, 2.0, 9.0, 11.0),
        (50, False, 0.1, 0.9, 2.0),  # of an accelerator all the time of a task counts
    ],
)
def test_a_task_takes_as_long_as_its_share_allows(
    share: int,
    on_cpu: bool,
    busy_s: float,
    waiting_s: float,
    takes_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = {"wall": 0.0, "busy": 0.0}

    def sleep(seconds: float) -> None:
        now["wall"] += seconds

    clock = SimpleNamespace(
        perf_counter=lambda: now["wall"], thread_time=lambda: now["busy"], sleep=sleep
    )
    monkeypatch.setattr(allowance, "time", clock)
    with Throttle(share, on_cpu=on_cpu).task():
        now |= {"wall": busy_s + waiting_s, "busy": busy_s}
    assert now["wall"] == pytest.approx(takes_s)
