"""A queue that knows the bytes inside: the outbound lane of a link, and the stream of events to the
rest of the client.

Who can wait puts within bounds of items *and* bytes, by turns: only the first waiting writer is
served, whatever its size, so that many small items cannot starve a large one. An item larger than
the byte bound is taken when the queue is empty, so that every legal message can be delivered. Who
may not wait appends beyond the bounds, and answers for what that takes.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class ByteQueue(trio.abc.ReceiveChannel[T], Generic[T]):
    """First in, first out; several tasks may put and get at a time.

    Args:
        size_of: the size of an item in bytes.
        max_items: bound on the number of items that were put.
        max_bytes: bound on their summed size.
    """

    def __init__(
        self,
        size_of: Callable[[T], int],
        max_items: float = math.inf,
        max_bytes: float = math.inf,
    ) -> None:
        self._size_of, self._max_items, self._max_bytes = size_of, max_items, max_bytes
        self._items: deque[T] = deque()
        self._bytes = 0
        self._closed = False
        self._turn = trio.Lock()
        self._taken = trio.lowlevel.ParkingLot()
        self._getters = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    async def put(self, item: T, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Wait for room, then append what is wanted still; raises trio.ClosedResourceError after
        ``close``."""
        async with self._turn:
            while not (self._closed or self._has_room(item)):
                await self._taken.park()
            if is_wanted():
                self.append(item)

    def append(self, item: T) -> None:
        """Append beyond the bounds; raises trio.ClosedResourceError after ``close``."""
        if self._closed:
            raise trio.ClosedResourceError
        self._items.append(item)
        self._bytes += self._size_of(item)
        self._getters.unpark()

    async def receive(self) -> T:
        """Wait for an item and take it; raises trio.EndOfChannel when closed and empty."""
        await trio.lowlevel.checkpoint()
        while not self._items:
            if self._closed:
                raise trio.EndOfChannel
            await self._getters.park()
        return self.receive_nowait()

    def receive_nowait(self) -> T:
        """Take an item, or raise trio.WouldBlock."""
        if not self._items:
            raise trio.WouldBlock
        item = self._items.popleft()
        self._bytes -= self._size_of(item)
        self._taken.unpark_all()
        return item

    def close(self) -> None:
        """Take no more items; those inside can still be received."""
        self._closed = True
        self._taken.unpark_all()
        self._getters.unpark_all()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def _has_room(self, item: T) -> bool:
        if not self._items:
            return True
        fits = self._bytes + self._size_of(item) <= self._max_bytes
        return fits and len(self._items) < self._max_items
