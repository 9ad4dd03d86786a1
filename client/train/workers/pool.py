"""The compute workers of a node: one process per held stage, and at most one that idles warm.

Starting a process takes seconds, so one is started ahead of the next assignment. Holds the running
processes; their tasks and the consequences of a death concern their borrower.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import trio

from client.compute.process import Worker

NewWorker = Callable[[], Worker]
"""Starts a worker, which the pool runs; raises ``OSError`` if no process can be started."""


class WorkerPool:
    """Provides worker processes, which run in the pool's own tasks."""

    def __init__(self, new_worker: NewWorker = Worker) -> None:
        self._new_worker = new_worker
        self._nursery: trio.Nursery | None = None
        self.idle: Worker | None = None
        """The worker that nobody has borrowed."""
        self._came = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Run workers until cancelled; the first one starts at once, or `OSError` says why not."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                self._start_idle()
                await trio.sleep_forever()
            finally:
                self._nursery = self.idle = None

    def warm(self) -> None:
        """Start an idle worker; it is ready some seconds later."""
        if self._nursery is not None and self.idle is None:
            with suppress(OSError):  # the borrower gets the error when it asks for one
                self._start_idle()

    async def wait_idle(self) -> Worker:
        """Wait for the idle worker, to ask it something without borrowing it."""
        while self.idle is None:
            await self._came.park()
        return self.idle

    async def renew_idle(self) -> None:
        """Replace the idle worker, which has died; raises `OSError` where none can be started."""
        worker, self.idle = self.idle, None
        if worker is not None:
            await self._end(worker)
        self._start_idle()

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Worker]:
        """A worker for the length of the block; its process is gone afterwards. Raises
        `OSError`."""
        worker, self.idle = self.idle or self._start(), None
        try:
            yield worker
        finally:
            with trio.CancelScope(shield=True):
                await self._end(worker)

    def _start_idle(self) -> None:
        self.idle = self._start()
        self._came.unpark_all()

    def _start(self) -> Worker:
        if self._nursery is None:
            raise RuntimeError("workers are lent while the pool runs")
        worker = self._new_worker()
        self._nursery.start_soon(worker.run)
        return worker

    async def _end(self, worker: Worker) -> None:
        worker.close()
        await worker.gone.wait()
