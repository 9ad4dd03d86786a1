"""A worker in the same process, on virtual time."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import trio

from client.compute.executor import Executor
from client.compute.payload import Buffer
from client.compute.process import Call, WorkerDied
from client.compute.requests import Answer, Request
from protocol.pipeline.effects import Outcome

COMPUTE_S = 0.02
"""Virtual seconds of every request, also by a task's outcome: what this machine really took would
make it slow among machines whose time is virtual."""


class LocalWorker:
    """Called like a worker process; runs the executor in this one, request by request."""

    def __init__(self) -> None:
        self._executor = Executor()
        self._queue: deque[Call[Any]] = deque()
        self._some, self.gone = trio.Event(), trio.Event()
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
                        self._execute(self._queue.popleft())
        finally:
            self.die()
            self.gone.set()

    def submit(self, request: Request[Any], payloads: Sequence[Buffer] = ()) -> Call[Any]:
        if self._dead:
            raise WorkerDied(-9, ())
        call = Call[Any](0, request, payloads)
        self._queue.append(call)
        self._some.set()
        return call

    def _execute(self, call: Call[Any]) -> None:
        def answer(reply: Answer, payloads: Sequence[Buffer]) -> None:
            if isinstance(reply, Outcome):
                reply = msgspec.structs.replace(reply, seconds=COMPUTE_S)
            call.answer = reply, list(map(bytes, payloads))

        if not call.abandoned:
            self._executor.execute(cast(Any, call.request), call.payloads, answer)
            self._executor.close()  # a save answers from its own thread
        call.done.set()

    async def call(self, request: Request[Any], within_s: float = math.inf) -> Any:
        reply, _ = await self.submit(request).wait(within_s)
        return reply

    def hang(self) -> None:
        """As by SIGSTOP."""
        self._hung = True

    def die(self) -> None:
        """As by SIGKILL: waiting calls raise it."""
        self._dead = True
        for call in self._queue:
            call.answer = WorkerDied(-9, ())
            call.done.set()
        self._queue.clear()
        self._some.set()

    close = die
