"""The compute workers of a node: one process per held stage, and at most one that idles warm.

Starting a process takes seconds, so one is started ahead of the next assignment. Holds the running
processes; their tasks and the consequences of a death concern their borrower.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from client.compute.group import open_group
from client.compute.process import RING_BYTES, Worker, open_worker

OpenWorker = Callable[[], AbstractAsyncContextManager[Worker]]


def opener(devices: Sequence[str], ring_bytes: int = RING_BYTES) -> OpenWorker:
    """Return what opens a worker on devices: a process, or a group of one for each."""
    if len(devices) > 1:
        return partial(open_group, tuple(devices), ring_bytes=ring_bytes)
    return partial(open_worker, ring_bytes=ring_bytes)


@dataclass(eq=False, slots=True)
class _Hosted:
    worker: Worker
    gone: trio.Event
    over: trio.Event = field(default_factory=trio.Event)


class WorkerPool:
    """Provides worker processes, which run in the pool's own tasks."""

    def __init__(self, open_worker: OpenWorker = open_worker) -> None:
        self._open_worker = open_worker
        self._nursery: trio.Nursery | None = None
        self._idle: _Hosted | None = None
        self._warming = False
        self._came = trio.Event()

    @property
    def idle(self) -> Worker | None:
        """The worker that nobody has borrowed."""
        return self._idle.worker if self._idle else None

    async def run(self) -> None:
        """Host workers until cancelled; the first one starts at once.

        Raises:
            OSError: the first one cannot be started.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._set_idle(await self._start())
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = self._idle = None

    def warm(self) -> None:
        """Start an idle worker; it is ready some seconds later."""
        if self._nursery is not None and self._idle is None and not self._warming:
            self._warming = True
            self._nursery.start_soon(self._warm_up)

    async def wait_idle(self) -> Worker:
        """Wait for the idle worker, to ask it something without borrowing it."""
        while self._idle is None:
            await self._came.wait()
        return self._idle.worker

    async def renew_idle(self) -> None:
        """Replace the idle worker, which has died.

        Raises:
            OSError: no process can be started.
        """
        hosted, self._idle = self._idle, None
        if hosted is not None:
            hosted.over.set()
            await hosted.gone.wait()
        self._set_idle(await self._start())

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Worker]:
        """A worker for the length of the block; afterwards its process is gone.

        Raises:
            OSError: no process can be started.
        """
        hosted, self._idle = self._idle, None
        if hosted is None:
            hosted = await self._start()
        try:
            yield hosted.worker
        finally:
            hosted.over.set()
            with trio.CancelScope(shield=True):
                await hosted.gone.wait()

    async def _warm_up(self) -> None:
        try:
            self._set_idle(await self._start())
        except OSError:
            pass  # the borrower gets the error when it asks for one
        finally:
            self._warming = False

    def _set_idle(self, hosted: _Hosted) -> None:
        self._idle = hosted
        self._came.set()
        self._came = trio.Event()

    async def _start(self) -> _Hosted:
        if self._nursery is None:
            raise RuntimeError("workers are lent while the pool runs")
        hosted: _Hosted = await self._nursery.start(self._host)
        return hosted

    async def _host(self, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        gone = trio.Event()
        try:
            async with self._open_worker() as worker:
                hosted = _Hosted(worker, gone)
                task_status.started(hosted)
                await hosted.over.wait()
        finally:
            gone.set()
