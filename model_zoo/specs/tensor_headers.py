"""The headers of our safetensors files: written, and from anybody, bounded before anything follows.

The format: 8 bytes with the header's length, little-endian; the header, a JSON object with the
type, the shape and the place of each tensor; the data. Our files have one header for what they
hold, so of one that is read only names, types and shapes are taken, and whoever reads compares it
with the header that these make.
"""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, BinaryIO, Final

import msgspec
from msgspec import Meta

LENGTH_BYTES: Final = 8
METADATA: Final = "__metadata__"
MAX_HEADER_BYTES: Final = 2 << 20
"""A stage of a hundred layers has a third of it."""
ALIGNMENT: Final = 64
"""Of the data."""

DTYPE_BYTES: Final = {"F32": 4, "BF16": 2, "F16": 2}
"""Sizes of the types that a file may have."""


class Described(msgspec.Struct, frozen=True):
    """A tensor: its type and its shape, within bounds in which a product takes no time."""

    dtype: Annotated[str, Meta(pattern=r"^(F32|BF16|F16)\Z")]
    shape: Annotated[tuple[Annotated[int, Meta(ge=1, le=2**40)], ...], Meta(max_length=8)]

    @property
    def size_bytes(self) -> int:
        """Of its numbers."""
        return DTYPE_BYTES[self.dtype] * math.prod(self.shape)


def encoded_header(
    tensors: Mapping[str, Described], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return everything before the data, its length included; a multiple of `ALIGNMENT`."""
    header: dict[str, Any] = {} if metadata is None else {METADATA: metadata}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.size_bytes
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (offset, end)}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    text += b" " * (-(len(text) + LENGTH_BYTES) % ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def read_header(file: BinaryIO) -> tuple[bytes, dict[str, Described], Any]:
    """Read a file from its beginning: everything before the data, which the caller compares with
    `encoded_header`; its tensors by name, in order; and the metadata, empty where there are none.

    Raises:
        OSError: it cannot be read.
        ValueError: it has no such header, or not as much data as its tensors.
    """
    size = file.seek(0, 2)
    file.seek(0)
    first = file.read(LENGTH_BYTES)
    length = int.from_bytes(first, "little")
    if not 2 <= length <= min(MAX_HEADER_BYTES, size - LENGTH_BYTES):
        raise ValueError("the length of its header is impossible")
    text = file.read(length)
    try:
        parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(parts.pop(METADATA, b"{}"))
        tensors = {name: _described(part) for name, part in parts.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"its header is malformed: {error}") from error
    if size != LENGTH_BYTES + length + sum(each.size_bytes for each in tensors.values()):
        raise ValueError("its tensors do not end where the file does")
    return first + text, tensors, metadata


_described = msgspec.json.Decoder(Described).decode
