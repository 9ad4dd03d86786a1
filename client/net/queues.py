"""A queue bounded in items *and* bytes: the only place where the client waits for slow readers.

It is the outbound lane of a link and the stream of events to the rest of the client. Who may not
wait appends beyond the bounds, and answers for what that takes. State: the items and their summed
size, and the turn of the waiting writers: only the first of them is served, whatever its size, so
that many small items cannot starve a large one. An item larger than the byte bound is
accepted when the queue is empty, so that every legal message can be delivered.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class BoundedQueue(trio.abc.ReceiveChannel[T], Generic[T]):
    """First in, first out; several tasks may put and get at a time.

    Args:
        max_items: bound on the number of items.
        max_bytes: bound on their summed size.
        size_of: the size of an item in bytes.
    """

    def __init__(self, max_items: int, max_bytes: int, size_of: Callable[[T], int]) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._items: deque[T] = deque()
        self._bytes = 0
        self._closed = False
        self._turn = trio.Lock()
        self._taken = trio.lowlevel.ParkingLot()
        self._getters = trio.lowlevel.ParkingLot()
        self._emptied = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def size_bytes(self) -> int:
        """Summed size of the items."""
        return self._bytes

    async def put(self, item: T) -> None:
        """Wait for room, then append; raises trio.ClosedResourceError after ``close``."""
        try:
            async with self._turn:
                while not (self._closed or self._has_room(item)):
                    await self._taken.park()
                if self._closed:
                    raise trio.ClosedResourceError
                self._append(item)
        finally:
            if not self._items:  # this task has given up, and no item tells ``wait_empty``
                self._emptied.unpark_all()

    def append(self, item: T) -> bool:
        """Append beyond the bounds; return whether there was room.

        Raises trio.ClosedResourceError after ``close``.
        """
        if self._closed:
            raise trio.ClosedResourceError
        room = self._has_room(item)
        self._append(item)
        return room

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
        if not self._items:
            self._emptied.unpark_all()
        return item

    def close(self) -> None:
        """Take no more items; those inside can still be received."""
        self._closed = True
        self._taken.unpark_all()
        self._getters.unpark_all()

    async def aclose(self) -> None:
        """Close and drop the items inside."""
        self.close()
        self._items.clear()
        self._bytes = 0
        self._emptied.unpark_all()
        await trio.lowlevel.checkpoint()

    async def wait_empty(self) -> None:
        """Wait until every item has been taken, those of waiting writers included."""
        while self._items or self._turn.locked():
            await self._emptied.park()

    def _append(self, item: T) -> None:
        self._items.append(item)
        self._bytes += self._size_of(item)
        self._getters.unpark()

    def _has_room(self, item: T) -> bool:
        if not self._items:
            return True
        fits = self._bytes + self._size_of(item) <= self._max_bytes
        return fits and len(self._items) < self._max_items
