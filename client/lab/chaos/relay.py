"""A relay between volunteers on loopback that loses, delays and slows down traffic.

Every volunteer has a relay in front of it and advertises the relay's port as its own, so each
connection passes the relay of the dialled volunteer; the owner of the other socket identifies the
dialler. A volunteer's shape applies to all bytes from and to it.

A blocked volunteer keeps its connections open and nothing is delivered (packets get lost); once it
is free again the waiting bytes are delivered. Memory: per direction of a connection at most
``MAX_CHUNKS`` chunks of ``CHUNK_BYTES``; a full one is not read from, as a slow line would.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio

CHUNK_BYTES = 32 * 1024
MAX_CHUNKS = 64
MAX_CONNECTIONS = 512
LOOPBACK = "127.0.0.1"
Who = Callable[[int, int], Awaitable[str | None]]
"""Returns the dialler for its port and ours."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The treatment of bytes in transit."""

    blocked: bool = False
    delay_s: float = 0.0
    bytes_per_s: float = math.inf

    def joined(self, other: Shape) -> Shape:
        """Return the combination of both."""
        return Shape(
            self.blocked or other.blocked,
            self.delay_s + other.delay_s,
            min(self.bytes_per_s, other.bytes_per_s),
        )


CLEAR = Shape()


Ends = tuple[str | None, str]
"""The dialler, None if it is unknown, and whom it has dialled."""


class Rules:
    """The shape of every volunteer; waiting tasks are woken when it changes."""

    def __init__(self) -> None:
        self._shapes: dict[str | None, Shape] = {}
        self._changed = trio.lowlevel.ParkingLot()

    def set(self, name: str, shape: Shape) -> None:
        """Shape the traffic of a volunteer."""
        self._shapes[name] = shape
        self._changed.unpark_all()

    def between(self, ends: Ends) -> Shape:
        """Return the present shape of bytes between two."""
        one, other = (self._shapes.get(end, CLEAR) for end in ends)
        return one.joined(other)

    async def until_free(self, ends: Ends) -> None:
        """Wait while one of two is blocked."""
        while self.between(ends).blocked:
            await self._changed.park()


@dataclass(slots=True)
class _Chunk:
    due: float
    data: bytes


class _Pipe:
    """One direction of one connection: read, wait, write."""

    def __init__(
        self, rules: Rules, ends: Ends, reader: trio.SocketStream, writer: trio.SocketStream
    ) -> None:
        self._rules, self._ends = rules, ends
        self._reader, self._writer = reader, writer
        self._chunks: deque[_Chunk] = deque()
        self._changed = trio.lowlevel.ParkingLot()
        self._ended = False

    async def read(self) -> None:
        """Receive chunks and compute when each is due."""
        due = 0.0
        while data := await self._reader.receive_some(CHUNK_BYTES):
            shape = self._rules.between(self._ends)
            due = max(due, trio.current_time() + shape.delay_s)
            self._chunks.append(_Chunk(due, data))
            self._changed.unpark_all()
            while len(self._chunks) >= MAX_CHUNKS:
                await self._changed.park()
        self._ended = True
        self._changed.unpark_all()

    async def write(self) -> None:
        """Deliver due chunks within the rate, then signal the end."""
        while True:
            while not self._chunks and not self._ended:
                await self._changed.park()
            if not self._chunks:
                await self._writer.send_eof()
                return
            chunk = self._chunks[0]
            await trio.sleep_until(chunk.due)
            await self._rules.until_free(self._ends)
            rate = self._rules.between(self._ends).bytes_per_s
            if math.isfinite(rate):
                await trio.sleep(len(chunk.data) / rate)
            await self._writer.send_all(chunk.data)
            self._chunks.popleft()
            self._changed.unpark_all()


class Relay:
    """The relay in front of one volunteer; ``serve`` runs until cancelled."""

    def __init__(self, name: str, target_port: int, rules: Rules, who: Who) -> None:
        self.name, self._target_port = name, target_port
        self._rules, self._who = rules, who
        self.connections = 0
        """Connections alive now."""

    async def serve(self, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Accept and relay; the value it starts with is its port."""
        (listener,) = await trio.open_tcp_listeners(0, host=LOOPBACK)
        port: int = listener.socket.getsockname()[1]
        async with listener, trio.open_nursery() as nursery:
            task_status.started(port)
            while True:
                stream = await listener.accept()
                nursery.start_soon(self._connection, stream, port)

    async def _connection(self, near: trio.SocketStream, port: int) -> None:
        async with near:
            if self.connections >= MAX_CONNECTIONS:
                return
            self.connections += 1
            try:
                await self._relay(near, port)
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # no volunteer is there, or either side has ended: close the connection
            finally:
                self.connections -= 1

    async def _relay(self, near: trio.SocketStream, port: int) -> None:
        ends = await self._who(near.socket.getpeername()[1], port), self.name
        await self._rules.until_free(ends)
        async with await trio.open_tcp_stream(LOOPBACK, self._target_port) as far:
            there, back = _Pipe(self._rules, ends, near, far), _Pipe(self._rules, ends, far, near)
            async with trio.open_nursery() as nursery:
                for pipe in (there, back):
                    nursery.start_soon(pipe.read)
                    nursery.start_soon(pipe.write)
