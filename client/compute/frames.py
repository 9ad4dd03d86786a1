"""Frames between node and worker: their format on the socket. Pure functions.

A frame is the size of its body (4 bytes, little-endian), a msgpack body, and its payloads one
behind the other.

Body: [id, message, [size, ...]].
"""

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Generic, TypeVar

import msgspec

from client.compute.errors import FrameError
from client.compute.payload import Buffer
from client.compute.requests import AnyAnswer, AnyRequest, Count

HEADER = struct.Struct("<I")
MessageT = TypeVar("MessageT")


class Body(
    msgspec.Struct, Generic[MessageT], frozen=True, array_like=True, forbid_unknown_fields=True
):
    """The body: `message` is a request or a reply; `sizes` are the payloads'."""

    id: int
    message: MessageT
    sizes: list[Count]

    def cut(self, payloads: memoryview) -> list[memoryview]:
        """Return the payloads, without copies."""
        return [payloads[start:end] for start, end in pairwise(accumulate(self.sizes, initial=0))]


REQUESTS: msgspec.msgpack.Decoder[Body[AnyRequest]] = msgspec.msgpack.Decoder(Body[AnyRequest])
ANSWERS: msgspec.msgpack.Decoder[Body[AnyAnswer]] = msgspec.msgpack.Decoder(Body[AnyAnswer])
_encoder = msgspec.msgpack.Encoder()


def pack(frame_id: int, message: msgspec.Struct, payloads: Sequence[Buffer]) -> list[Buffer]:
    """Return the buffers to write to the socket, in order, for a request or the reply to it."""
    sizes = [len(payload) for payload in payloads]
    body = _encoder.encode(Body(frame_id, message, sizes))
    return [HEADER.pack(len(body)) + body, *payloads]


def unpack(body: Buffer, decoder: msgspec.msgpack.Decoder[Body[MessageT]]) -> Body[MessageT]:
    """Read the body of a frame, by `REQUESTS` or `ANSWERS`.

    Raises:
        FrameError: it is none.
    """
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(f"frame body is malformed: {error}") from error
