"""A relay between volunteers on loopback that loses, delays and slows down traffic.

Every volunteer has a relay in front of it and advertises the relay's port as its own, so each
connection passes the relay of the dialled volunteer; the owner of the other socket identifies the
dialler. Rules apply to bytes from one volunteer to another; None stands for any.

A blocked direction keeps its connections open and delivers nothing (packets get lost); once it is
free again the waiting bytes are delivered. Memory: per direction of a connection at most
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


class Rules:
    """The shape of every directed pair; waiting tasks are woken when it changes."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[str | None, str | None], Shape] = {}
        self._changed = trio.lowlevel.ParkingLot()

    def set(self, source: str | None, target: str | None, shape: Shape) -> None:
        """Shape the traffic from ``source`` to ``target``."""
        if shape == CLEAR:
            self._shapes.pop((source, target), None)
        else:
            self._shapes[source, target] = shape
        self._changed.unpark_all()

    def between(self, source: str | None, target: str | None) -> Shape:
        """Return the present shape of bytes from one to the other."""
        found = CLEAR
        for key in {(source, target), (source, None), (None, target), (None, None)}:
            found = found.joined(self._shapes.get(key, CLEAR))
        return found

    async def until_free(self, source: str | None, target: str | None) -> None:
        """Wait while the direction is blocked."""
        while self.between(source, target).blocked:
            await self._changed.park()


@dataclass(slots=True)
class _Chunk:
    due: float
    data: bytes


class _Pipe:
    """One direction of one connection: read, wait, write."""

    def __init__(
        self,
        rules: Rules,
        source: str | None,
        target: str | None,
        reader: trio.SocketStream,
        writer: trio.SocketStream,
    ) -> None:
        self._rules, self._source, self._target = rules, source, target
        self._reader, self._writer = reader, writer
        self._chunks: deque[_Chunk] = deque()
        self._changed = trio.lowlevel.ParkingLot()
        self._ended = False

    async def read(self) -> None:
        """Receive chunks and compute when each is due."""
        due = 0.0
        while data := await self._reader.receive_some(CHUNK_BYTES):
            shape = self._rules.between(self._source, self._target)
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
            await self._rules.until_free(self._source, self._target)
            rate = self._rules.between(self._source, self._target).bytes_per_s
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
        dialler = await self._who(near.socket.getpeername()[1], port)
        await self._rules.until_free(dialler, self.name)
        async with await trio.open_tcp_stream(LOOPBACK, self._target_port) as far:
            there = _Pipe(self._rules, dialler, self.name, near, far)
            back = _Pipe(self._rules, self.name, dialler, far, near)
            async with trio.open_nursery() as nursery:
                for pipe in (there, back):
                    nursery.start_soon(pipe.read)
                    nursery.start_soon(pipe.write)
