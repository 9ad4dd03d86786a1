"""One rank of a worker that is a group of processes, each with the stage on a device of its own.

The first rank makes the versions and takes part in rounds; the others run passes alone. Gradient
sums are moved to it before a round, and added in the order of ranks: the sum depends only on which
rank has counted what. Afterwards it gives its parameters to the others, so that all have the same
bits whatever their devices are. State: the process group of `torch.distributed`.

The ranks find each other by a file in a private folder, and listen on loopback alone. Tensors are
all that they exchange: nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from client.compute.device import select_device
from client.compute.errors import LedgerError, ShapeError, StaleRequest
from client.compute.replica import Replica, host_bytes
from client.compute.requests import Done, GatherSum, JoinGroup, ShareVersion, VersionShared
from client.compute.slot import Slot

_LEADER = 0
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_LIBRARIES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class Ranks:
    """This process's place among the ranks.

    Args:
        request: the place.

    Raises:
        ShapeError: this machine lacks the device, or its torch lacks `torch.distributed`.
        RuntimeError: the others were not there in time.
    """

    def __init__(self, request: JoinGroup) -> None:
        if not dist.is_available():
            raise ShapeError("this build of torch has no torch.distributed: use one device")
        os.environ.update(dict.fromkeys(_LIBRARIES, _LOOPBACK))
        self._rank = request.rank
        device = select_device(request.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=dist.FileStore(request.meet, request.size),  # type: ignore[attr-defined]
            rank=request.rank,
            world_size=request.size,
            timeout=timedelta(seconds=request.timeout_s),
        )

    def gather(self, slot: Slot, request: GatherSum) -> Done:
        """Move the gradient sums of a step to the first rank's.

        Raises:
            LedgerError: what this rank has counted is not what the request says.
        """
        counted = request.counted[self._rank]
        if slot.counted != set(counted):
            raise LedgerError(f"rank {self._rank} has counted {len(slot.counted)} microbatches")
        if self._rank != _LEADER:
            dist.send(slot.gradient_sum, _LEADER)
            slot.gradient_sum.zero_()
            slot.counted.clear()
            return Done()
        for rank, theirs in enumerate(request.counted):
            if rank != _LEADER and theirs:
                dist.recv(slot.flat.gradients, rank)
                slot.gradient_sum.add_(slot.flat.gradients)
                slot.counted.update(theirs)
        return Done()

    def share(self, replica: Replica, request: ShareVersion) -> VersionShared:
        """Take over the first rank's parameters, or give them to the others.

        Raises:
            StaleRequest: this rank is not at the version, or not at the one before.
        """
        if self._rank != _LEADER:
            replica.begin(request.version)
        if replica.version != request.version:
            raise StaleRequest(f"rank {self._rank} is at version {replica.version}")
        dist.broadcast(replica.parameters, _LEADER)
        return VersionShared(
            digest=hashlib.blake2b(host_bytes(replica.parameters), digest_size=32).hexdigest()
        )
