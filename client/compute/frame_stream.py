"""Frames read from a stream, without blocking the event loop.

State: bytes that were read ahead.
"""

import trio

from client.compute.frames import HEADER, Envelope, FrameHeader, unpack_body, unpack_header

_READ_AHEAD_BYTES = 4096  # a frame without inline payloads comes in one read
_INLINE_CHUNK_BYTES = 1 << 20


class FrameReader:
    """Reads one frame after the other."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._unread = bytearray()

    async def read(self) -> tuple[FrameHeader, Envelope, memoryview]:
        """Return the next frame and its inline payloads, one behind the other.

        Raises:
            FrameError: the bytes are no frame.
            trio.EndOfChannel: the other end is closed.
        """
        header = unpack_header(await self._exactly(HEADER.size))
        envelope = unpack_body(await self._exactly(header.body_bytes), header)
        return header, envelope, memoryview(await self._exactly(header.inline_bytes))

    async def _exactly(self, size: int) -> bytearray:
        while (missing := size - len(self._unread)) > 0:
            most = max(_READ_AHEAD_BYTES, min(missing, _INLINE_CHUNK_BYTES))
            piece = await self._stream.receive_some(most)
            if not piece:
                raise trio.EndOfChannel
            self._unread += piece
        if len(self._unread) == size:  # mostly, and then nothing is copied
            data, self._unread = self._unread, bytearray()
        else:
            data = self._unread[:size]
            del self._unread[:size]
        return data
