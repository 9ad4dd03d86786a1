"""The header of a safetensors file: written, and from anybody, bounded before anything follows.

The format: 8 bytes with the header's length, little-endian; the header, a JSON object with the
type, the shape and the place of each tensor; the data.
"""

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

LENGTH_BYTES: Final = 8
METADATA: Final = "__metadata__"
MAX_HEADER_BYTES: Final = 2 << 20
"""A stage of a hundred layers has a third of it."""
MAX_TENSORS: Final = 16384
ALIGNMENT: Final = 64
"""Of the data in files that we write."""
MAX_RANK: Final = 8
MAX_NAME_CHARS: Final = 256
MAX_DIMENSION: Final = 2**40
"""Bounds that hold before anything is multiplied: the product of 400,000 dimensions takes seconds.
"""
MAX_COLONS: Final = 4 * MAX_TENSORS + 64
"""Every tensor has four in JSON; they are counted before anything is parsed."""

DTYPE_BYTES: Final = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}
"""Sizes of the types that a file may have."""

_Offset = Annotated[int, Meta(ge=0, le=2**62)]
_Dimension = Annotated[int, Meta(ge=1, le=MAX_DIMENSION)]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor: its type, its shape, and its place in the data."""

    dtype: Annotated[str, Meta(max_length=16)]
    shape: Annotated[tuple[_Dimension, ...], Meta(max_length=MAX_RANK)]
    data_offsets: tuple[_Offset, _Offset]


def encoded_header(header: Mapping[str, Any]) -> bytes:
    """Return everything before the data, its length included; a multiple of `ALIGNMENT`."""
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    text += b" " * (-(len(text) + LENGTH_BYTES) % ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def header_length(first: bytes | bytearray, file_bytes: int) -> int:
    """Return the length of a file's header, which its first bytes say.

    Raises:
        ValueError: no file of so many bytes has such a one.
    """
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    if not 2 <= length <= min(MAX_HEADER_BYTES, file_bytes - LENGTH_BYTES):
        raise ValueError("the length of its header is impossible")
    return length


def parse_header(text: bytes, data_bytes: int) -> dict[str, Entry]:
    """Return the tensors of a file by name, once they cover its data without gap or overlap.

    Args:
        text: the header, without its length.
        data_bytes: size of what follows it in the file.

    Raises:
        ValueError: it is no header of such a file.
    """
    if len(text) > MAX_HEADER_BYTES or text.count(b":") > MAX_COLONS:
        raise ValueError(f"its header is too long, or has more than {MAX_TENSORS} tensors")
    try:
        raw = json.loads(text, object_pairs_hook=_without_duplicates)
        raw.pop(METADATA, None)
        entries = msgspec.convert(raw, dict[str, Entry])
    except (AttributeError, TypeError, RecursionError, msgspec.ValidationError) as error:
        raise ValueError(f"its header is malformed: {error}") from error
    if any(len(name) > MAX_NAME_CHARS for name in entries):
        raise ValueError("a tensor's name is too long")
    for name, entry in entries.items():
        if problem := _problem(entry):
            raise ValueError(f"tensor {name} {problem}")
    _check_cover(entries, data_bytes)
    return entries


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("its header has a name twice")
    return found


def _problem(entry: Entry) -> str | None:
    size = DTYPE_BYTES.get(entry.dtype)
    if size is None:
        return f"has the unknown type {entry.dtype!r}"
    start, end = entry.data_offsets
    if end - start != size * math.prod(entry.shape):
        return "has another size than its shape"
    return None


def _check_cover(entries: dict[str, Entry], data_bytes: int) -> None:
    places = sorted(entry.data_offsets for entry in entries.values())
    edges = [(0, 0), *places, (data_bytes, data_bytes)]
    if any(before[1] != after[0] for before, after in pairwise(edges)):
        raise ValueError("its tensors overlap, leave gaps, or do not end where the file does")
