"""Workers for the length of a block; afterwards their processes are gone."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from client.compute.process import Worker


@asynccontextmanager
async def open_worker(*, command: Sequence[str] = ()) -> AsyncIterator[Worker]:
    """A running worker; as ``Worker``."""
    worker, failure = Worker(command=command), None
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
