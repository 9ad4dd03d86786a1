"""What the ranks of a group exchange; a mailbox of this process stands for `torch.distributed`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor

from client.compute import ranks as module
from client.compute.errors import LedgerError, ShapeError, StaleRequest
from client.compute.ranks import Ranks
from client.compute.replica import Replica
from client.compute.requests import GatherSum, JoinGroup, ShareVersion
from protocol.pipeline.effects import ApplyTask
from tests.support.compute_rounds import accumulate
from tests.support.compute_stages import LocalWorker, opened


class Mailbox:
    """Stands for `torch.distributed`; a rank that sends is called before the one that receives."""

    def __init__(self) -> None:
        self.rank, self.available = 0, True
        self.sent: dict[int, Tensor] = {}
        self.given: Tensor | None = None
        self.joined: list[tuple[str, dict[str, Any]]] = []

    def is_available(self) -> bool:
        return self.available

    def FileStore(self, path: str, size: int) -> tuple[str, int]:  # noqa: N802
        return path, size

    def init_process_group(self, backend: str, **how: Any) -> None:
        self.joined.append((backend, how))

    def send(self, tensor: Tensor, to: int) -> None:
        assert to == 0
        self.sent[self.rank] = tensor.clone()

    def recv(self, out: Tensor, rank: int) -> None:
        out.copy_(self.sent.pop(rank))

    def broadcast(self, tensor: Tensor, rank: int) -> None:
        assert rank == 0
        if self.rank == 0:
            self.given = tensor.clone()
        elif self.given is not None:
            tensor.copy_(self.given)


@pytest.fixture
def mailbox(monkeypatch: pytest.MonkeyPatch) -> Mailbox:
    mailbox = Mailbox()
    monkeypatch.setattr(module, "dist", mailbox)
    for name in module._LIBRARIES:
        monkeypatch.delenv(name, raising=False)
    return mailbox


class Group:
    """So many ranks, of which each has counted the microbatch of its number."""

    def __init__(self, mailbox: Mailbox, count: int) -> None:
        self.mailbox = mailbox
        self.workers = [opened(0, [4]) for _ in range(count)]
        accumulate(self.workers, 0, per_worker=1)
        self.ranks = []
        for rank in range(count):
            join = JoinGroup(rank=rank, size=count, meet="there", device="cpu", timeout_s=7)
            self.ranks.append(Ranks(join))
        self.counted = [sorted(worker.replica.counted) for worker in self.workers]

    def replica(self, rank: int) -> Replica:
        self.mailbox.rank = rank
        return self.workers[rank].replica

    def gather(self, rank: int, counted: list[list[int]]) -> None:
        slot = self.replica(rank).slot
        self.ranks[rank].gather(slot, GatherSum(step=0, counted=counted))

    def share(self, rank: int, version: int) -> str:
        replica = self.replica(rank)
        return self.ranks[rank].share(replica, ShareVersion(version=version, advanced=True)).digest


def test_a_rank_meets_the_others_in_their_folder_and_talks_on_loopback_alone(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    Group(mailbox, 2)
    (backend, how) = mailbox.joined[1]
    assert backend == "gloo"
    assert how == {
        "store": ("there", 2),
        "rank": 1,
        "world_size": 2,
        "timeout": timedelta(seconds=7),
    }
    assert {module.os.environ[name] for name in module._LIBRARIES} == {module._LOOPBACK}
    mailbox.available = False
    with pytest.raises(ShapeError, match=r"no torch\.distributed: use one device"):
        Group(mailbox, 1)


def test_sums_are_moved_to_the_first_rank_and_what_was_counted_with_them(mailbox: Mailbox) -> None:
    group = Group(mailbox, 3)
    sums = [worker.replica.gradient_sum.clone() for worker in group.workers]
    for rank in (1, 2, 0):
        group.gather(rank, group.counted)
    first, *others = (worker.replica for worker in group.workers)
    assert torch.equal(first.gradient_sum, sums[0] + sums[1] + sums[2])
    assert first.counted == {m for counted in group.counted for m in counted}
    for other in others:
        assert not other.gradient_sum.any()
        assert not other.counted
    group.gather(0, [sorted(first.counted), [], []])  # the others have counted nothing since
    assert torch.equal(first.gradient_sum, sums[0] + sums[1] + sums[2])


def test_a_rank_that_has_counted_something_else_says_so(mailbox: Mailbox) -> None:
    group = Group(mailbox, 2)
    for rank in (0, 1):
        before = group.replica(rank).gradient_sum.clone()
        with pytest.raises(LedgerError, match=f"rank {rank} has counted 1 microbatches"):
            group.gather(rank, [[77], [78]])
        assert torch.equal(group.replica(rank).gradient_sum, before)
    assert not mailbox.sent


def test_all_ranks_have_the_parameters_of_the_first_one(mailbox: Mailbox) -> None:
    group = Group(mailbox, 2)
    leader: LocalWorker = group.workers[0]
    leader.call(ApplyTask(step=0))
    assert not torch.equal(group.replica(0).parameters, group.replica(1).parameters)
    digests = {group.share(rank, 1) for rank in (0, 1)}
    assert len(digests) == 1
    assert torch.equal(group.replica(0).parameters, group.replica(1).parameters)
    assert group.replica(1).version == 1
    with pytest.raises(StaleRequest, match="rank 0 is at version 1"):
        group.share(0, 2)
