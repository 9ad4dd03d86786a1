"""Workers for the length of a block; afterwards their processes are gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from client.compute.group import new_group
from client.compute.process import Worker, WorkerProcess


@asynccontextmanager
async def open_worker(*, command: Sequence[str] = ()) -> AsyncIterator[Worker]:
    """A worker that is one process; as ``WorkerProcess``."""
    async with running(WorkerProcess(command=command)) as worker:
        yield worker


@asynccontextmanager
async def open_group(devices: Sequence[str], timeout_s: int = 60) -> AsyncIterator[Worker]:
    """A worker of one process per device; as ``new_group``."""
    async with running(new_group(devices, timeout_s)) as worker:
        yield worker


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    """Run a worker, and close it."""
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        try:
            yield worker
        except Exception as error:
            failure = error  # raised below, where no nursery wraps it into a group
        finally:
            worker.close()
    if failure is not None:
        raise failure
