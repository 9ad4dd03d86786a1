"""Frames: the layout of a message (the header) and its payload in a byte stream.

    header length (u32, big-endian) | payload length (u32) | header | payload

Pure: bytes in, frames out. The decoder holds at most one unfinished frame. It checks both lengths
against fixed limits as soon as it has read them, and the payload's length against the limit of
*its own message* as soon as the header is complete, so that no peer can make it buffer more than
the message allows. After a refusal the position in the stream is lost for good.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from protocol import limits
from protocol.errors import LocalProtocolError, RemoteProtocolError

PREFIX = struct.Struct(">II")
"""Header length and payload length."""
_KEPT_BYTES = 4096
"""Smaller pieces of a payload are copied together, because each kept piece has overhead."""

H = TypeVar("H")
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Frame(Generic[H]):
    """One complete frame: its parsed header and its raw payload (empty for most messages)."""

    header: H
    payload: bytes


def encode_frame(header: bytes, payload: Buffer = b"") -> list[Buffer]:
    """Return the buffers of one frame, in order; the payload is passed on, not copied.

    Raises:
        LocalProtocolError: header or payload is larger than any receiver accepts.
    """
    payload_bytes = memoryview(payload).nbytes
    if not 0 < len(header) <= limits.MAX_HEADER_BYTES:
        raise LocalProtocolError(f"a header has 1..{limits.MAX_HEADER_BYTES} bytes")
    if payload_bytes > limits.MAX_PAYLOAD_BYTES:
        raise LocalProtocolError(f"payload of {payload_bytes} bytes is over the limit")
    start = PREFIX.pack(len(header), payload_bytes) + header
    return [start, payload] if payload_bytes else [start]


class FrameDecoder(Generic[H]):
    """Cuts a stream of bytes, fed in pieces of any size, into frames.

    Args:
        parse_header: turns header bytes into a message; may raise ``RemoteProtocolError``.
        payload_limit_of: the most payload bytes that this parsed header may announce.
    """

    def __init__(
        self, parse_header: Callable[[bytes], H], payload_limit_of: Callable[[H], int]
    ) -> None:
        self._parse_header = parse_header
        self._payload_limit_of = payload_limit_of
        self._head = bytearray()  # prefix and header while they are incomplete
        self._header: H | None = None
        self._payload: list[Buffer] = []  # as it came, joined once it is complete
        self._payload_left = 0
        self.held_bytes = 0
        """Bytes received of the unfinished frame; 0 between two frames."""
        self._lost = False

    def receive_data(self, data: Buffer) -> list[Frame[H]]:
        """Take the next bytes of the stream; return the frames they complete.

        Args:
            data: kept, not copied, until its frame is complete: it must not change any more.

        Raises:
            RemoteProtocolError: a length over its limit, or a header that does not parse.
            LocalProtocolError: called again after such a refusal.
        """
        if self._lost:
            raise LocalProtocolError("this stream was refused; its position is lost")
        self._lost = True  # until this call ends well
        view = memoryview(data).cast("B")
        frames: list[Frame[H]] = []
        while view:
            before = len(view)
            view = self._take_payload(view) if self._header is not None else self._take_head(view)
            self.held_bytes += before - len(view)
            self._complete(frames)
        self._lost = False
        return frames

    def receive_eof(self) -> None:
        """Note that the stream ended.

        Raises:
            RemoteProtocolError: it ended inside a frame.
        """
        if self.held_bytes or self._lost:
            raise RemoteProtocolError("frame-truncated", penalty=0)

    def _take_head(self, view: memoryview) -> memoryview:
        missing = self._head_size() - len(self._head)
        self._head += view[:missing]
        if len(self._head) == PREFIX.size:
            self._check_prefix()
        elif len(self._head) == self._head_size():
            self._begin_payload()
        return view[missing:]

    def _head_size(self) -> int:
        if len(self._head) < PREFIX.size:
            return PREFIX.size
        header_size, _ = PREFIX.unpack_from(self._head)
        return PREFIX.size + int(header_size)

    def _check_prefix(self) -> None:
        header_size, payload_size = PREFIX.unpack(self._head)
        if not 0 < header_size <= limits.MAX_HEADER_BYTES:
            raise RemoteProtocolError("header-size", f"{header_size} bytes", penalty=50)
        if payload_size > limits.MAX_PAYLOAD_BYTES:
            raise RemoteProtocolError("payload-size", f"{payload_size} bytes", penalty=50)

    def _begin_payload(self) -> None:
        _, payload_size = PREFIX.unpack_from(self._head)
        header = self._parse_header(bytes(self._head[PREFIX.size :]))
        if payload_size > self._payload_limit_of(header):
            raise RemoteProtocolError("payload-size", f"{payload_size} bytes", penalty=50)
        self._header = header
        self._payload_left = payload_size
        self._head.clear()

    def _take_payload(self, view: memoryview) -> memoryview:
        taken = view[: self._payload_left]
        self._payload_left -= len(taken)
        last = self._payload[-1] if self._payload else None
        if len(taken) >= _KEPT_BYTES:
            self._payload.append(taken)
        elif isinstance(last, bytearray):
            last += taken
        else:
            self._payload.append(bytearray(taken))
        return view[len(taken) :]

    def _complete(self, frames: list[Frame[H]]) -> None:
        if self._header is None or self._payload_left:
            return
        frames.append(Frame(self._header, b"".join(self._payload)))
        self._header, self._payload, self.held_bytes = None, [], 0
