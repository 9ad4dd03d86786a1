"""Computing the hash of the version at hand while passes go on.

State of a `VersionHasher`: at most one thread, which has as many others hash the leaves as the
stage may use. A version's tensors change only when the step is applied, so they are read where they
are; code that changes them waits for the thread first (`wait`).
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from client.compute.allowance import Throttle
from client.compute.errors import StaleRequest
from client.compute.replica import Replica, digest_of_tensors, hash_tensors
from client.compute.saving import side_stream
from protocol.pipeline.effects import HashTask, Outcome


class VersionHasher:
    """Hashes one version at a time in threads of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(
        self,
        replica: Replica,
        task: HashTask,
        throttle: Throttle,
        finish: Callable[[Callable[[], Outcome]], None],
    ) -> None:
        """Begin to hash the version in a thread.

        Args:
            replica: whose state is hashed.
            task: names the version.
            throttle: limits the time that is spent.
            finish: called in the thread with a function that computes the hash.

        Raises:
            StaleRequest: the replica is at another version.
            RuntimeError: no thread can be started.
        """
        if task.step != replica.version:
            raise StaleRequest(f"asked to hash {task.step}, stage is at {replica.version}")
        self.wait()
        threads, stream = torch.get_num_threads(), side_stream(replica.wire.device)

        def digest(parts: Sequence[Tensor]) -> bytes:
            begin = throttle.begin()
            with torch.cuda.stream(stream) if stream is not None else nullcontext():
                found = digest_of_tensors(parts)
            throttle.rest(begin)
            return found

        def compute() -> Outcome:
            tensors = replica.state_tensors
            replica.known_hash = hash_tensors(task.step, tensors, threads, digest)
            return Outcome(hash=replica.known_hash)

        thread = threading.Thread(target=lambda: finish(compute), name="hashing")
        thread.start()
        self._thread = thread

    def wait(self) -> None:
        """Return when nothing is being hashed: the tensors may change."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
