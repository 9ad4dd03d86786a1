"""Computing the hash of the version at hand while passes go on.

A version's tensors change only when the step is applied, so they are read where they are, by as
many threads as the stage may use; code that changes them waits until the hash is there. No state.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from client.compute.allowance import Throttle
from client.compute.errors import StaleRequest
from client.compute.replica import Replica, digest_of_tensors, hash_tensors
from client.compute.saving import side_stream
from protocol.pipeline.effects import HashTask, Outcome


def begin_hash(replica: Replica, task: HashTask, throttle: Throttle) -> Callable[[], Outcome]:
    """Return what computes the hash of a version, in a thread of its own.

    Args:
        replica: whose state is hashed.
        task: names the version.
        throttle: limits the time that is spent.

    Raises:
        StaleRequest: the replica is at another version.
    """
    if task.step != replica.version:
        raise StaleRequest(f"asked to hash {task.step}, stage is at {replica.version}")
    threads, stream = torch.get_num_threads(), side_stream(replica.wire.device)

    def digest(parts: Sequence[Tensor]) -> bytes:
        begin = throttle.begin()
        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            found = digest_of_tensors(parts)
        throttle.rest(begin)
        return found

    def compute() -> Outcome:
        replica.known_hash = hash_tensors(task.step, replica.state_tensors, threads, digest)
        return Outcome(hash=replica.known_hash)

    return compute
