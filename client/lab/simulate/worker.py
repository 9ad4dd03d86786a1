"""The interface of a simulated peer's worker: it separates a world from its arithmetic.

A world moves payloads as opaque bytes and runs tasks one after the other; only the worker
interprets the bytes. There are two: ``multisets`` (exact, fast) and ``tensors`` (the real
executor). No state.
"""

import hashlib
from collections.abc import Callable
from typing import Protocol

from protocol.pipeline.effects import Outcome, PayloadKey, Task
from protocol.pipeline.place import Place

Payloads = dict[PayloadKey, bytes]
"""The payloads a peer holds, by key; a task's own ones are added as it yields them."""


class SimWorker(Protocol):
    """One stage's parameters and accumulated gradient; opened at version 0."""

    @property
    def size(self) -> int:
        """Elements of the stage's flat gradient."""

    def run(self, task: Task, payloads: Payloads) -> Outcome:
        """Run a task on the payloads it names and store what it yields.

        Raises:
            InvariantViolation: what the task got, or would yield, breaks an invariant.
        """

    def save(self, version: int) -> str:
        """Keep the current version for ``load`` of another worker; returns its name."""

    def load(self, version: int, saved: str) -> str:
        """Load a saved version, with nothing accumulated; returns the version's hash."""


def payload_digest(payload: bytes) -> bytes:
    """Return the BLAKE2b-256 of a payload."""
    return hashlib.blake2b(payload, digest_size=32).digest()


OpenWorker = Callable[[Place], SimWorker]
