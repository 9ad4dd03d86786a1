"""A queue bounded in items *and* bytes: the one place where this client waits for slow readers.

It is the outbound lane of a link and the stream of events to the rest of the client. State: the
items and their summed size. An item larger than the byte bound is let in when the queue is empty,
so that no legal message is undeliverable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

from client.net.errors import LinkFull

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
        self._changed = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def size_bytes(self) -> int:
        """Summed size of the items."""
        return self._bytes

    async def put(self, item: T) -> None:
        """Wait for room, then append; raises trio.ClosedResourceError after ``close``."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._has_room(item):
            await self._changed.park()
        self.put_nowait(item)

    def put_nowait(self, item: T) -> None:
        """Append, or raise LinkFull (no room) or trio.ClosedResourceError (after ``close``)."""
        if self._closed:
            raise trio.ClosedResourceError
        if not self._has_room(item):
            raise LinkFull(f"{len(self._items)} messages of {self._bytes} bytes are waiting")
        self._items.append(item)
        self._bytes += self._size_of(item)
        self._changed.unpark_all()

    async def receive(self) -> T:
        """Wait for an item and take it; raises trio.EndOfChannel when closed and empty."""
        await trio.lowlevel.checkpoint()
        while not self._items:
            if self._closed:
                raise trio.EndOfChannel
            await self._changed.park()
        return self.receive_nowait()

    def receive_nowait(self) -> T:
        """Take an item, or raise trio.WouldBlock."""
        if not self._items:
            raise trio.WouldBlock
        item = self._items.popleft()
        self._bytes -= self._size_of(item)
        self._changed.unpark_all()
        return item

    def close(self) -> None:
        """Take no more items; those inside can still be received."""
        self._closed = True
        self._changed.unpark_all()

    async def aclose(self) -> None:
        """Close and drop what is inside."""
        self.close()
        self._items.clear()
        self._bytes = 0
        await trio.lowlevel.checkpoint()

    async def wait_empty(self) -> None:
        """Wait until every item has been taken."""
        while self._items:
            await self._changed.park()

    def _has_room(self, item: T) -> bool:
        if not self._items or self._closed:
            return True
        fits = self._bytes + self._size_of(item) <= self._max_bytes
        return fits and len(self._items) < self._max_items
