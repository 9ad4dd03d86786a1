"""A worker in the same process, on virtual time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import trio

from client.compute.executor import Executor
from client.compute.payload import Buffer
from client.compute.process import RequestFailed, WorkerDied
from client.compute.requests import Failed, Reply, Request

COMPUTE_S = 0.02
"""Virtual seconds of every request, also by its reply: what this machine really took would make it
slow among machines whose time is virtual."""


class LocalWorker:
    """Called like a worker process; runs the executor in this one, request by request."""

    def __init__(self) -> None:
        self._executor = Executor()
        self._queue: deque[_Pending] = deque()
        self._some = trio.Event()
        self._dead = self._hung = False
        self.pid = os.getpid()

    async def run(self) -> None:
        try:
            while not self._dead:
                await self._some.wait()
                self._some = trio.Event()
                while self._queue and not self._hung:
                    await trio.sleep(COMPUTE_S)
                    if self._queue and not self._hung:
                        self._queue.popleft().execute(self._executor)
        finally:
            self.die()

    def submit(self, request: Request[Any], payloads: Sequence[Buffer] = ()) -> _Pending:
        if self._dead:
            raise WorkerDied(-9, ())
        pending = _Pending(self, request, payloads)
        self._queue.append(pending)
        self._some.set()
        return pending

    async def call(self, request: Request[Any], payloads: Sequence[Buffer] = ()) -> Any:
        return await self.submit(request, payloads).wait()

    def hang(self) -> None:
        """As by SIGSTOP."""
        self._hung = True

    def die(self) -> None:
        """As by SIGKILL: waiting calls raise it."""
        self._dead = True
        while self._queue:
            self._queue.popleft().done.set()
        self._some.set()

    close = die


@dataclass(eq=False)
class _Pending:
    worker: LocalWorker
    request: Request[Any]
    payloads: Sequence[Buffer]
    answers: list[tuple[Reply, list[bytes]]] = field(default_factory=list)
    done: trio.Event = field(default_factory=trio.Event)

    def execute(self, executor: Executor) -> None:
        executor.execute(cast(Any, self.request), self.payloads, self._answer)
        executor.close()  # a save answers from its own thread
        self.done.set()

    def _answer(self, reply: Reply, payloads: Sequence[Buffer]) -> None:
        reply = msgspec.structs.replace(reply, seconds=COMPUTE_S)
        self.answers.append((reply, [bytes(payload) for payload in payloads]))

    async def wait(self) -> tuple[Any, list[bytes]]:
        await self.done.wait()
        if not self.answers:
            raise WorkerDied(-9, ())
        reply, payloads = self.answers[0]
        if isinstance(reply, Failed):
            raise RequestFailed(reply)
        return reply, payloads
