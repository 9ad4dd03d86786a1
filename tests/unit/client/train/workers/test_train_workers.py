"""The processes of a node: one is ready before it is needed, none stays behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
import trio
import trio.testing

from client.compute.process import Worker, WorkerDied
from client.train.workers.pool import WorkerPool


class Process:
    """Runs until it is closed."""

    def __init__(self, others: list[Process]) -> None:
        self._others, self._over, self.gone = others, trio.Event(), trio.Event()
        others.append(self)
        self.close = self._over.set

    async def run(self) -> None:
        try:
            await self._over.wait()
        finally:
            self._others.remove(self)
            self.gone.set()


class Processes:
    """Counts those that run."""

    def __init__(self, most: int = 99) -> None:
        self.started = 0
        self.running: list[Process] = []
        self._most = most

    def start(self) -> Worker:
        if self.started >= self._most:
            raise OSError("no more processes")
        self.started += 1
        return cast(Worker, Process(self.running))


@asynccontextmanager
async def running(processes: Processes) -> AsyncIterator[WorkerPool]:
    """A pool whose first process is ready."""
    pool = WorkerPool(processes.start)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run)
        await pool.wait_idle()
        yield pool
        nursery.cancel_scope.cancel()


async def test_the_first_is_ready_and_lent() -> None:
    processes = Processes()
    async with running(processes) as pool:
        ready = pool.idle
        async with pool.lend() as lent:
            assert lent is ready
            assert pool.idle is None
        assert processes.running == []
        async with pool.lend() as other:
            assert processes.running == [other]


async def test_one_stands_by_and_no_more() -> None:
    processes = Processes()
    async with running(processes) as pool:
        for _ in range(3):
            pool.warm()
        await trio.testing.wait_all_tasks_blocked()
        assert processes.started == 1
        async with pool.lend():
            pool.warm()
            pool.warm()
            spare = await pool.wait_idle()
            await trio.testing.wait_all_tasks_blocked()
            assert processes.started == 2
        assert pool.idle is spare
    assert processes.running == []


async def test_a_borrower_hears_of_a_death_as_it_is() -> None:
    processes = Processes()
    async with running(processes) as pool:
        with pytest.raises(WorkerDied):
            async with pool.lend():
                raise WorkerDied(-9, ())
        assert processes.running == []


async def test_a_process_that_cannot_be_started_is_told_to_who_needs_it() -> None:
    async with running(Processes(most=1)) as pool, pool.lend():
        pool.warm()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(OSError, match="no more"):
            async with pool.lend():
                pass
