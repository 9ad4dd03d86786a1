"""A worker in a process of its own, called like ``LocalWorker``; it lacks vector instructions.

Its kernels then round otherwise than ours, as those of another machine do.
"""

import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

from client.compute.payload import Buffer
from client.compute.requests import Failed, Request
from tests.support.compute_stages import LocalWorker

WITHOUT_VECTORS = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
"""What PyTorch's kernels and oneDNN's go by; MKL's products are what they are elsewhere."""


class OtherProcess:
    """See the module's docstring."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._there, theirs = spawn.Pipe()
        with mock.patch.dict(os.environ, WITHOUT_VECTORS):
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

    def close(self) -> None:
        """End the process."""
        self._there.close()
        self._process.join()


def _serve(owner: Connection) -> None:
    worker = LocalWorker()
    while True:
        try:
            request, payloads = owner.recv()
        except EOFError:
            return
        owner.send(worker.ask(request, *payloads))
