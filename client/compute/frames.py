"""Frames between node and worker: their format on the socket, and its checks.

A frame is a fixed header, a msgpack body, and its payloads one behind the other. Pure functions:
`channel` and `process` read and write the socket.

Header, 16 bytes, little-endian: 4s magic, I size of the body, Q size of the payloads.

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

MAX_BODY_BYTES = 16 << 20  # the longest: one digest per 2 MiB of a checkpoint of 1 TiB
MAX_PAYLOAD_BYTES = 32 << 30  # a whole fp32 gradient of the largest stage
MAX_PAYLOADS = 1024

HEADER = struct.Struct("<4sIQ")
_MAGIC = b"VCF2"


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body: `message` is a request or a reply, still encoded; `sizes` are the payloads'."""

    id: int
    message: msgspec.Raw
    sizes: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=MAX_PAYLOADS)]

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

    Raises:
        FrameError: the message or the payloads are larger than a frame may be.
    """
    if len(payloads) > MAX_PAYLOADS:
        raise FrameError(f"{len(payloads)} payloads are more than {MAX_PAYLOADS}")
    sizes = [len(payload) for payload in payloads]
    body = _encoder.encode(Envelope(frame_id, msgspec.Raw(_encoder.encode(message)), sizes))
    _check(len(body), sum(sizes))
    return [HEADER.pack(_MAGIC, len(body), sum(sizes)) + body, *payloads]


def unpack_header(data: Buffer) -> tuple[int, int]:
    """The sizes of the body and of the payloads from the 16 bytes of a header.

    Raises:
        FrameError: it is no header, or announces more than a frame may hold.
    """
    magic, body_bytes, payload_bytes = HEADER.unpack(data)
    if magic != _MAGIC:
        raise FrameError("not the start of a frame")
    _check(body_bytes, payload_bytes)
    return body_bytes, payload_bytes


def _check(body_bytes: int, payload_bytes: int) -> None:
    if body_bytes > MAX_BODY_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise FrameError(f"frame of {body_bytes} + {payload_bytes} bytes is too large")


def unpack_body(body: Buffer, payload_bytes: int) -> Envelope:
    """The envelope, whose sizes agree with the header.

    Raises:
        FrameError: the body is not an envelope or contradicts the header.
    """
    try:
        envelope = _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(f"frame body is malformed: {error}") from error
    if sum(envelope.sizes) != payload_bytes:
        raise FrameError("frame body contradicts its header")
    return envelope
