"""The fixed header of a wire payload: the described tensor, and the checks of the header.

A payload is header, optional vector of means, body. Its size follows from shape and codec alone, so
a receiver that knows the shape from the manifest checks everything here before it allocates
anything. Holds no state, imports no torch: the node reads and seals payloads with it as well.

Header, 64 bytes, little-endian:

    4s magic  B version  B codec  B 0  B direction  B ndim  B dtype (0: fp32)  H block
    4I dims (unused: 0)  32s BLAKE3 seal (zeros: unsealed)  4x

s8 and s4 bodies: block after block of 128 numbers, each its bf16 scale and then its values; the
last dimension is padded to whole blocks. Of activations of several rows the mean of each (padded)
channel, in bf16, comes before. bf16 and fp32 bodies are the plain little-endian elements. q2, q3
and q4 bodies: chunk after chunk, each its bf16 scales and then its packed numbers; the last chunk
is filled up.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hmac import compare_digest
from typing import Literal, TypeAlias, get_args

from blake3 import blake3

from client.compute.errors import CodecError
from model_zoo.specs.codec import CODECS, Codec

Direction = Literal["forward", "backward", "average"]
Buffer: TypeAlias = bytes | bytearray | memoryview

BLOCK = CODECS["s8"].block
SCALE_BYTES = 2

HEADER = struct.Struct("<4sBBBBBBH4I32s4x")
DIGEST_BYTES = 32
_DIGEST_START = HEADER.size - 4 - DIGEST_BYTES
_MAGIC = b"VTP1"
_VERSION = 2
_DTYPE_FP32 = 0
_MAX_DIMS = 4

_CODECS: dict[int, Codec] = {spec.number: name for name, spec in CODECS.items()}
_DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


@dataclass(frozen=True, slots=True)
class Header:
    """A checked header: `size_bytes` of payload encode a tensor of `shape`."""

    codec: Codec
    direction: Direction
    shape: tuple[int, ...]

    @property
    def rotated(self) -> bool:
        """Whether groups of 64 elements were rotated before quantisation."""
        return self.direction != "average"

    @property
    def centred(self) -> bool:
        """Whether a bf16 vector with the mean of each (padded) channel precedes the body."""
        blocks = self.codec in ("s8", "s4")
        return blocks and self.direction == "forward" and len(self.shape) > 1

    @property
    def channel_bytes(self) -> int:
        """Size of the vector that precedes the body."""
        return SCALE_BYTES * padded_width(self.shape) * self.centred

    @property
    def body_start(self) -> int:
        """Offset of the body in the payload."""
        return HEADER.size + self.channel_bytes

    @property
    def size_bytes(self) -> int:
        """Size of the whole payload."""
        return self.body_start + CODECS[self.codec].body_bytes(self.shape)


def padded_width(shape: Sequence[int]) -> int:
    """The last dimension, rounded up to whole blocks."""
    return -(-shape[-1] // BLOCK) * BLOCK


def largest_payload_bytes(shape: Sequence[int], codec: Codec) -> int:
    """The most bytes of a payload of this shape, which bounds a receiver's buffer."""
    return Header(codec, "forward", tuple(shape)).size_bytes


def write_header(buffer: bytearray | memoryview, header: Header) -> None:
    """Write the header, unsealed, at the start of the buffer.

    Raises:
        ValueError: the shape has no or more than four dimensions, or one outside 1..2^32-1.
    """
    dims = header.shape
    if not 1 <= len(dims) <= _MAX_DIMS or not all(0 < dim < 1 << 32 for dim in dims):
        raise ValueError(f"a payload cannot hold the shape {dims}")
    HEADER.pack_into(
        buffer,
        0,
        _MAGIC,
        _VERSION,
        CODECS[header.codec].number,
        0,
        _DIRECTIONS.index(header.direction),
        len(dims),
        _DTYPE_FP32,
        CODECS[header.codec].block,
        *_four(dims),
        bytes(DIGEST_BYTES),
    )


def read_header(
    buffer: Buffer,
    expected_shape: Sequence[int],
    codec: Codec | None = None,
    direction: Direction | None = None,
) -> Header:
    """Check a received payload's header and size against the manifest; return the header.

    It allocates nothing that depends on the payload.

    Args:
        buffer: the payload.
        expected_shape: required shape.
        codec: required codec; None accepts any.
        direction: required direction; None accepts any.

    Raises:
        CodecError: a value differs from the expected one; the message names it.
    """
    header = _parse(buffer, tuple(expected_shape))
    if codec is not None and header.codec != codec:
        raise CodecError(f"codec is {header.codec}, expected {codec}")
    if direction is not None and header.direction != direction:
        raise CodecError(f"direction is {header.direction}, expected {direction}")
    if len(buffer) != header.size_bytes:
        raise CodecError(f"payload has {len(buffer)} bytes, its shape needs {header.size_bytes}")
    return header


def _parse(buffer: Buffer, expected_shape: tuple[int, ...]) -> Header:
    if len(buffer) < HEADER.size:
        raise CodecError(f"payload of {len(buffer)} bytes is shorter than its header")
    magic, version, codec_id, zero, direction_id, ndim, dtype, block, *rest = HEADER.unpack_from(
        buffer
    )
    if magic != _MAGIC or version != _VERSION:
        raise CodecError("payload does not start with a known magic and version")
    if codec_id not in _CODECS or direction_id >= len(_DIRECTIONS) or dtype != _DTYPE_FP32:
        raise CodecError(f"unknown codec {codec_id}, direction {direction_id} or dtype {dtype}")
    codec, direction = _CODECS[codec_id], _DIRECTIONS[direction_id]
    if CODECS[codec].vectors and ndim > 1:
        raise CodecError(f"{codec} is for vectors, not for tensors of {ndim} dimensions")
    if block != CODECS[codec].block:
        raise CodecError(f"block size {block} is not the one of {codec}")
    if zero:
        raise CodecError(f"flags {zero:#x} are not allowed")
    if ndim != len(expected_shape) or tuple(rest[:_MAX_DIMS]) != _four(expected_shape):
        raise CodecError(f"shape is {rest[:_MAX_DIMS]} (ndim {ndim}), expected {expected_shape}")
    return Header(codec, direction, expected_shape)


def _four(dims: tuple[int, ...]) -> tuple[int, ...]:
    return dims + (0,) * (_MAX_DIMS - len(dims))


def digest(buffer: Buffer) -> bytes:
    """BLAKE3 of a payload without its seal: `seal` writes it and `check_seal` expects it. Of all
    digests of 32 bytes this one is cheap enough for what a GPU sends."""
    view = memoryview(buffer)
    state = blake3(view[:_DIGEST_START])
    state.update(view[_DIGEST_START + DIGEST_BYTES :])
    return state.digest()


def seal(buffer: bytearray | memoryview) -> None:
    """Write the payload's digest into its header.

    Apart from `encode`, because hashing costs as much as quantising.
    """
    buffer[_DIGEST_START : _DIGEST_START + DIGEST_BYTES] = digest(buffer)


def sealed_digest(buffer: Buffer) -> bytes:
    """The digest in a payload's header, whether or not its bytes have it; empty for no payload."""
    return bytes(memoryview(buffer)[_DIGEST_START : _DIGEST_START + DIGEST_BYTES])


def check_seal(buffer: Buffer) -> None:
    """Refuse a payload whose bytes are not the ones that were sealed.

    Raises:
        CodecError: the payload is damaged, unsealed or too short.
    """
    if len(buffer) < HEADER.size:
        raise CodecError(f"payload of {len(buffer)} bytes is shorter than its header")
    if not compare_digest(sealed_digest(buffer), digest(buffer)):
        raise CodecError("payload does not match its digest")
