"""TensorBoard's event files, written without TensorBoard: scalars and texts, as it reads them.

A file is a row of records (TFRecord: length, its checksum, data, its checksum; CRC-32C, masked),
each an ``Event`` in protobuf's encoding. TensorBoard reads all files of a folder in the order of
their names, so each session begins one of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

FILE_VERSION: Final = b"brain.Event:2"
MOST: Final = 3e38
"""Larger numbers are none of a float's 32 bits."""
_POLYNOMIAL: Final = 0x82F63B78


def file_name(began: float, pid: int) -> str:
    """Return the name of the file of a session that began at ``began`` (Unix seconds)."""
    return f"events.out.tfevents.{int(began):010d}.volunteer.{pid}"


def file_head(wall: float) -> bytes:
    """Return the first record of every file; ``wall``: Unix seconds."""
    return _record(_wall(wall) + _bytes_field(3, FILE_VERSION))


def scalars(step: int, wall: float, values: Mapping[str, float]) -> bytes:
    """Return the record of one step.

    Args:
        step: its number.
        wall: Unix seconds.
        values: numbers by name; those that are not finite are left out.
    """
    summary = b"".join(
        _bytes_field(1, _bytes_field(1, name.encode()) + b"\x15" + struct.pack("<f", value))
        for name, value in values.items()
        if abs(value) < MOST
    )
    return _record(_wall(wall) + b"\x10" + _varint(step) + _bytes_field(5, summary))


def text(step: int, wall: float, name: str, content: str) -> bytes:
    """Return the record of a text of one step, which is shown as it is, not as Markdown.

    Args:
        step: its number.
        wall: Unix seconds.
        name: of the text.
        content: the text.
    """
    shown = "\n".join(f"    {line}" for line in content.splitlines())
    plugin = _bytes_field(1, _bytes_field(1, b"text"))
    one_string = b"\x08\x07" + _bytes_field(2, _bytes_field(2, b"\x08\x01"))
    tensor = one_string + _bytes_field(8, shown.encode(errors="replace"))
    value = (
        _bytes_field(1, name.encode(errors="replace"))
        + _bytes_field(8, tensor)
        + _bytes_field(9, plugin)
    )
    return _record(_wall(wall) + b"\x10" + _varint(step) + _bytes_field(5, _bytes_field(1, value)))


def _wall(wall: float) -> bytes:
    return b"\x09" + struct.pack("<d", wall)


def _bytes_field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + _checksum(length) + content + _checksum(content)


def _checksum(content: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ _POLYNOMIAL if value & 1 else value >> 1
    return value


_TABLE: Final = tuple(map(_entry, range(256)))
