"""Frames between node and worker: their format on the socket. Pure functions.

A frame is the size of its body (4 bytes, little-endian), a msgpack body, and its payloads one
behind the other.

Body: [id, message, [size, ...]].
"""

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Annotated

import msgspec
from msgspec import Meta

from client.compute.errors import FrameError
from client.compute.payload import Buffer

HEADER = struct.Struct("<I")


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body: `message` is a request or a reply, still encoded; `sizes` are the payloads'."""

    id: int
    message: msgspec.Raw
    sizes: list[Annotated[int, Meta(ge=0)]]

    def cut(self, payloads: memoryview) -> list[memoryview]:
        """Return the payloads, without copies."""
        return [payloads[start:end] for start, end in pairwise(accumulate(self.sizes, initial=0))]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def pack(frame_id: int, message: msgspec.Struct, payloads: Sequence[Buffer]) -> list[Buffer]:
    """Return the buffers to write to the socket, in order.

    Args:
        frame_id: number of the request.
        message: request or reply.
        payloads: tensors that travel with it.
    """
    sizes = [len(payload) for payload in payloads]
    body = _encoder.encode(Envelope(frame_id, msgspec.Raw(_encoder.encode(message)), sizes))
    return [HEADER.pack(len(body)) + body, *payloads]


def unpack(body: Buffer) -> Envelope:
    """The envelope in the body of a frame.

    Raises:
        FrameError: there is none.
    """
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(f"frame body is malformed: {error}") from error
