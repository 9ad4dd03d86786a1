"""Frames between node and worker: their format on the socket, and its checks.

A frame is a fixed header, a msgpack body, and those payloads that did not fit into the shared
memory. Pure functions: `channel` and `process` read and write the socket.

Header, 32 bytes, little-endian:

    4s magic  I size of the body  Q size of inline payloads
    Q position up to which the sender has written its ring with this frame
    Q position up to which the sender has read the receiver's ring

Body: [id, message, [[size, offset or -1 for inline], ...]].
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from client.compute.errors import FrameError
from client.compute.payload import Buffer
from client.compute.ring import RingReader, RingWriter

MAX_BODY_BYTES = 16 << 20  # the longest: one digest per 2 MiB of a checkpoint of 1 TiB
MAX_INLINE_BYTES = 32 << 30  # a whole fp32 gradient of the largest stage
MAX_PAYLOADS = 1024

HEADER = struct.Struct("<4sIQQQ")
_MAGIC = b"VCF1"
_INLINE = -1


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The sizes of the parts that follow on the socket, and the two ring positions."""

    body_bytes: int
    inline_bytes: int
    written: int
    read_up_to: int


class PayloadPlace(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A payload's place: an offset in the ring, or -1 for inline, in the order of the list."""

    size: int
    offset: int


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body: `message` is a request or a reply, still encoded."""

    id: int
    message: msgspec.Raw
    places: list[PayloadPlace]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def pack(
    frame_id: int,
    message: msgspec.Struct,
    payloads: Sequence[Buffer],
    ring: RingWriter,
    read_up_to: int,
) -> list[Buffer]:
    """Return the buffers to write to the socket, in order; payloads go into the ring if they fit.

    Args:
        frame_id: number of the request.
        message: request or reply.
        payloads: tensors that travel with it.
        ring: shared memory of this direction.
        read_up_to: position up to which we have read the other ring.

    Raises:
        FrameError: the message or the payloads are larger than a frame may be.
    """
    places, inline = [], []
    for payload in payloads:
        offset = ring.place(payload)
        if offset is None:
            inline.append(payload)
        places.append(PayloadPlace(len(payload), _INLINE if offset is None else offset))
    body = _encoder.encode(Envelope(frame_id, msgspec.Raw(_encoder.encode(message)), places))
    header = FrameHeader(len(body), sum(map(len, inline)), ring.written, read_up_to)
    _check(header, len(payloads))
    fields = (header.body_bytes, header.inline_bytes, header.written, header.read_up_to)
    return [HEADER.pack(_MAGIC, *fields) + body, *inline]


def unpack_header(data: Buffer) -> FrameHeader:
    """The checked header from its 32 bytes.

    Raises:
        FrameError: it is no header, or announces more than a frame may hold.
    """
    magic, *fields = HEADER.unpack(data)
    if magic != _MAGIC:
        raise FrameError("not the start of a frame")
    header = FrameHeader(*fields)
    _check(header, 0)
    return header


def _check(header: FrameHeader, payloads: int) -> None:
    if header.body_bytes > MAX_BODY_BYTES or header.inline_bytes > MAX_INLINE_BYTES:
        raise FrameError(f"frame of {header.body_bytes} + {header.inline_bytes} bytes is too large")
    if payloads > MAX_PAYLOADS:
        raise FrameError(f"{payloads} payloads are more than {MAX_PAYLOADS}")


def unpack_body(body: Buffer, header: FrameHeader) -> Envelope:
    """The envelope, with places that agree with the header.

    Raises:
        FrameError: the body is not an envelope or contradicts the header.
    """
    try:
        envelope = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FrameError(f"frame body is malformed: {error}") from error
    inline = sum(place.size for place in envelope.places if place.offset == _INLINE)
    if any(place.size < 0 for place in envelope.places) or inline != header.inline_bytes:
        raise FrameError("frame body contradicts its header")
    _check(header, len(envelope.places))
    return envelope


def payload_views(envelope: Envelope, inline: memoryview, ring: RingReader) -> list[memoryview]:
    """Return the payloads named by `envelope` without copies: views of `inline` and of `ring`.

    Raises:
        FrameError: a payload lies outside the ring.
    """
    views, start = [], 0
    for place in envelope.places:
        if place.offset == _INLINE:
            views.append(inline[start : start + place.size])
            start += place.size
        else:
            views.append(ring.view(place.offset, place.size))
    return views
