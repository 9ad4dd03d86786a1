"""The interface of a byte stream between two machines: a TCP connection, or a stream of another
connection, as a circuit through a relay is.

It carries bytes in order and proves no identity; the handshake that follows does.
"""

from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

Buffer = bytes | bytearray | memoryview


class ByteStream(trio.abc.AsyncResource):
    """Bytes in order both ways, between us and one other machine.

    One task may send and one may receive at a time. ``aclose`` ends it at once, without waiting for
    the other side.
    """

    remote_host: str = ""
    """The address of the other end, a number, by which connections are counted and penalised;
    empty where it is not known."""
    own_host: str = ""
    """The address of our end, a number; empty where there is no such thing."""
    ports: tuple[int, int] = (0, 0)
    """Our own port and the other end's; zeros where there is no such thing."""

    def keep_unsent(self, most_bytes: int) -> None:
        """Keep about so many bytes at most that have not left the machine: nothing overtakes them.

        Override it where there is such a queue.
        """

    async def wait_for_room(self) -> None:
        """Wait until no more than that has not left the machine. One caller at a time; being
        cancelled does no harm."""

    @abstractmethod
    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """Send the buffers in order, waiting while the other side takes none.

        Args:
            buffers: must not change afterwards; the stream may read from them later.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: the stream is broken.
        """

    @abstractmethod
    async def receive_some(self, most: int) -> Buffer:
        """Wait for bytes and return up to ``most`` of them; empty at the end of the stream. Raises
        trio.BrokenResourceError, trio.ClosedResourceError: the stream is broken."""

    async def receive_into(self, buffer: memoryview, wanted_bytes: int) -> int:
        """Wait for bytes, put them in front and return how many; 0 at the end of the stream.

        Override it where that saves a copy.

        Args:
            buffer: takes what there is, at most its size.
            wanted_bytes: fewer are of no use yet, so the stream need not wake us for them; it may.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: the stream is broken.
        """
        data = await self.receive_some(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@asynccontextmanager
async def closing(opened: trio.abc.AsyncResource) -> AsyncIterator[None]:
    """Close a stream or a listener at the end, without waiting for the other side.

    It is shielded from cancellation, which would replace an error that is being raised.
    """
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(opened)
