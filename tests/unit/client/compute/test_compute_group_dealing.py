"""How a group deals out requests, with ranks that answer when the test says so."""

import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio
import trio.testing
from msgspec.structs import replace

from client.compute import group as module
from client.compute.group import WorkerGroup, together
from client.compute.process import Call, RequestFailed, Worker, WorkerDied, WorkerProcess
from client.compute.requests import (
    Answer,
    Done,
    Failed,
    GatherSum,
    JoinGroup,
    MatmulRate,
    OpenStage,
    Ping,
    Probe,
    Probed,
    Request,
    Save,
    Saved,
    ShareVersion,
    StageOpened,
    VersionShared,
)
from protocol.pipeline.effects import ApplyTask, ContributeTask, LossTask, Outcome, PassTask
from tests.support.compute_stages import LocalWorker, open_request

LOSS = Outcome(seconds=4.0, loss_sum=1.0)
OPENED = StageOpened(parameters=5)


def probed(device: str, memory: int = 1, flops: float = 1.0) -> Probed:
    return Probed(
        device=device,
        identity=f"card of {memory} bytes",
        rates=[MatmulRate(64, "float32", flops)],
        memory_total_bytes=memory,
        memory_available_bytes=memory,
        copy_bytes_per_s=5.0,
    )


class FakeRank(Worker):
    """Answers what takes part in nothing at once; passes and the like when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Any] = []
        self.digest, self.closed, self.kind = "same", False, "cuda"

    @property
    def pids(self) -> tuple[int, ...]:
        return (7,)

    def submit(self, request: Any, payloads: Sequence[Any] = ()) -> Any:
        submitted = super().submit(request, payloads)
        self.asked.append(request)
        at_once: dict[type, Answer] = {
            JoinGroup: Done(),
            OpenStage: OPENED,
            GatherSum: Done(),
            ShareVersion: VersionShared(digest=self.digest),
            Ping: Done(),
            Probe: probed(self.kind),
            ContributeTask: Outcome(),
            ApplyTask: Outcome(hash="h", grad_norm=1.0),
        }
        of_sums = isinstance(request, ApplyTask) and request.bounds
        if type(request) in at_once and not of_sums:
            self.answer(at_once[type(request)])
        return submitted

    def answer(self, reply: Answer, place: int = -1) -> None:
        call: Call[Any] = list(self._waiting.values())[place]
        del self._waiting[call.id]
        call.answer = (reply, [])
        call.done.set()

    def close(self) -> None:
        self.closed = True

    async def run(self) -> None:
        await trio.sleep_forever()

    def kinds(self) -> list[str]:
        return [type(request).__name__ for request in self.asked]


@asynccontextmanager
async def group_of(count: int) -> AsyncIterator[tuple[WorkerGroup, list[FakeRank]]]:
    ranks = [FakeRank() for _ in range(count)]
    group = WorkerGroup(ranks, [f"cuda:{n}" for n in range(count)], Path("meet"), 5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(group.run)
        yield group, ranks
        nursery.cancel_scope.cancel()


def loss_of(microbatch: int) -> LossTask:
    return LossTask(step=0, microbatch=microbatch)


async def test_the_first_rank_alone_keeps_what_rounds_need() -> None:
    async with group_of(3) as (group, ranks):
        request = open_request(0, [4], averaging="s8", threads=8, memory_bytes=90, device="x")
        await group.call(request)
        asked = [next(r for r in rank.asked if isinstance(r, OpenStage)) for rank in ranks]
        assert [each.device for each in asked] == ["cuda:0", "cuda:1", "cuda:2"]
        assert [each.follows for each in asked] == [False, True, True]
        assert {(each.threads, each.memory_bytes) for each in asked} == {(2, 30)}
    for request in asked:
        worker = LocalWorker()
        worker.call(replace(request, device="cpu", memory_bytes=0))
        assert (worker.executor._opened.averager._residual is None) == request.follows


async def test_ranks_on_devices_of_different_kinds_are_no_group() -> None:
    async with group_of(2) as (group, ranks):
        ranks[1].kind = "cpu"
        with pytest.raises(RequestFailed, match="rank 1 computes on cpu, and the first rank on"):
            await group.call(Probe(sizes=[64]))


async def test_the_least_busy_rank_gets_a_microbatch() -> None:
    async with group_of(2) as (group, ranks):
        asked = [group.submit(loss_of(m)) for m in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        assert [len(rank.asked) for rank in ranks] == [2, 1]
        ranks[1].answer(LOSS)
        reply, _ = await asked[1].wait()
        assert reply.seconds == 2.0, "of two ranks' time"
        asked.append(group.submit(loss_of(3)))
        asked.append(group.submit(loss_of(4)))
        await trio.testing.wait_all_tasks_blocked()
        assert [len(rank.asked) for rank in ranks] == [2, 3]
        group.submit(loss_of(0))
        await trio.testing.wait_all_tasks_blocked()
        assert ranks[0].asked[-1] == loss_of(0), "where it was before"


async def test_a_sum_is_moved_when_no_rank_computes() -> None:
    async with group_of(2) as (group, ranks):
        group.submit(loss_of(0))
        group.submit(loss_of(1))
        audit = PassTask(into="audit", step=0, microbatch=9)
        group.submit(audit)
        saving = group.submit(Save(version=0, path="p"))
        contributing = group.submit(ContributeTask(step=0, attempt=0, bounds=[0, 5]))
        group.submit(loss_of(2))
        await trio.testing.wait_all_tasks_blocked()
        assert ranks[0].kinds() == ["LossTask", "PassTask", "Save"]
        ranks[0].answer(LOSS, 0)
        ranks[1].answer(LOSS)
        await trio.testing.wait_all_tasks_blocked()
        assert "GatherSum" not in ranks[0].kinds(), "it still computes for an audit"
        ranks[0].answer(Outcome(), 0)
        await contributing.wait()  # and not for the file
        moved = GatherSum(step=0, counted=[[0], [1]])
        assert ranks[0].asked[3:5] == [moved, ContributeTask(step=0, attempt=0, bounds=[0, 5])]
        assert ranks[1].asked[1:2] == [moved]
        await trio.testing.wait_all_tasks_blocked()
        assert "LossTask" in ranks[1].kinds()[2:] + ranks[0].kinds()[5:]
        ranks[0].answer(Saved(version=0, path="p", hash="", data_start=0, digests=[]), 0)
        await saving.wait()


async def test_a_failure_of_the_first_rank_is_only_told() -> None:
    async with group_of(2) as (group, ranks):
        request = ApplyTask(step=0, attempt=0, bounds=[0, 5], sq_norms=[1.0])
        asked = group.submit(request)
        await trio.testing.wait_all_tasks_blocked()
        ranks[0].answer(Failed(kind="codec", message="bad", part=3))
        with pytest.raises(RequestFailed, match="bad") as caught:
            await asked.wait()
        assert (caught.value.kind, caught.value.part) == ("codec", 3)
        assert "ShareVersion" not in ranks[0].kinds() + ranks[1].kinds()
        await group.call(Ping())


@pytest.mark.parametrize("how", ["death", "digest", "failure"])
async def test_one_that_cannot_go_on_ends_all(how: str, autojump_clock: object) -> None:
    async with group_of(2) as (group, ranks):
        waiting = group.submit(loss_of(0))
        await trio.testing.wait_all_tasks_blocked()
        if how == "death":
            ranks[1]._die(WorkerDied(-signal.SIGKILL, ("out of memory",)))
        else:
            ranks[0].answer(LOSS)
            await waiting.wait()
            waiting = group.submit(ApplyTask(step=0))
            ranks[1].digest = "another" if how == "digest" else "same"
            if how == "failure":
                ranks[1].submit = failing(ranks[1])  # type: ignore[method-assign]
        with pytest.raises(WorkerDied, match="it was rank 1 of 2, on cuda:1"):
            await waiting.wait()
        with pytest.raises(WorkerDied):
            group.submit(loss_of(1))
        assert all(rank.closed for rank in ranks)


def failing(rank: FakeRank) -> Any:
    def submit(request: Request[Any], payloads: Sequence[Any] = ()) -> Any:
        submitted = Worker.submit(rank, request, payloads)
        rank.answer(Failed(kind="internal", message="RuntimeError: timed out"))
        return submitted

    return submit


async def test_a_rank_that_never_answers_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with group_of(2) as (group, ranks):
        ranks[1].submit = lambda *asked: Worker.submit(ranks[1], *asked)  # type: ignore[method-assign]
        with pytest.raises(WorkerDied, match="it had not answered the other ranks for 5 s"):
            await group.call(open_request(0, [4]))
        assert trio.current_time() >= module._MARGIN_S


def test_what_ranks_have_measured_is_one_machine() -> None:
    cards = together([probed("cuda:0", 800, 3.0), probed("cuda:1", 600, 4.0)])
    assert (cards.rates[0].flop_per_s, cards.memory_total_bytes) == (7.0, 600)
    assert cards.identity == "card of 800 bytes; card of 600 bytes"
    processes = together([probed("cpu", 800, 3.0), probed("cpu", 800, 4.0)])
    assert (processes.rates[0].flop_per_s, processes.memory_total_bytes) == (7.0, 400)


async def test_a_group_that_cannot_start_whole_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[WorkerProcess] = []

    def start() -> WorkerProcess:
        if begun:
            raise OSError("no more processes")
        begun.append(WorkerProcess(command=(sys.executable, "-c", "input()")))
        return begun[0]

    monkeypatch.setattr(module, "WorkerProcess", start)
    with pytest.raises(OSError, match="no more processes"):
        module.new_group(["cpu:0", "cpu:1"])
    assert not psutil.pid_exists(begun[0].pid)
