"""A worker in a process of its own, called like ``LocalWorker``; it may lack vector instructions.

Its kernels then round otherwise than ours, as those of another machine do.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

from client.compute.payload import Buffer
from client.compute.requests import Failed, Request
from tests.support.compute_stages import LocalWorker

INSTRUCTIONS: Final = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "sse": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}
"""What PyTorch's kernels and oneDNN's go by; MKL's products are what they are elsewhere."""


class AuditingWorker(LocalWorker):
    """A worker whose copy of a version serves for several audits, one after the other."""

    _kept: Any = None

    def ask(self, request: Request[Any], *payloads: Buffer) -> tuple[Any, list[bytes]]:
        """The reply, which may be `Failed`, and its payloads."""
        answer = super().ask(request, *payloads)
        self._kept = self._auditor._kept or self._kept
        return answer

    def again(self) -> None:
        """Make the newest copy what it was before the last audit."""
        self._kept.slot.clear()
        self._auditor._kept = self._kept

    @property
    def _auditor(self) -> Any:
        opened = self.executor._opened
        assert opened is not None
        return opened.auditor


class OtherProcess:
    """See the module's docstring; ``AuditingWorker`` is what runs there."""

    def __init__(self, instructions: str) -> None:
        self.instructions = instructions
        spawn = multiprocessing.get_context("spawn")
        self._there, theirs = spawn.Pipe()
        with _environment(INSTRUCTIONS[instructions]):
            self._process = spawn.Process(target=_serve, args=(theirs,), daemon=True)
            self._process.start()
        theirs.close()

    def ask(self, request: Request[Any], *payloads: Buffer) -> tuple[Any, list[bytes]]:
        """The reply, which may be `Failed`, and its payloads."""
        self._there.send((request, [bytes(payload) for payload in payloads]))
        reply, sent = self._there.recv()
        return reply, sent

    def call(self, request: Request[Any], *payloads: Buffer) -> tuple[Any, list[bytes]]:
        """As `ask`, for requests that must succeed."""
        reply, sent = self.ask(request, *payloads)
        assert not isinstance(reply, Failed), reply
        return reply, sent

    def again(self) -> None:
        """As ``AuditingWorker.again``."""
        self._there.send(None)
        self._there.recv()

    def close(self) -> None:
        """End the process."""
        self._there.close()
        self._process.join()


def _serve(owner: Connection) -> None:
    worker = AuditingWorker()
    while True:
        try:
            asked = owner.recv()
        except EOFError:
            return
        if asked is None:
            owner.send(worker.again())
        else:
            owner.send(worker.ask(asked[0], *asked[1]))


@contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    """Have a process that is started meanwhile inherit the changes."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
