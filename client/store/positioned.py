"""Reads and writes of a file at given places; both raise ``OSError``."""

import errno
import os


def write_at(descriptor: int, data: bytes, place: int) -> None:
    """Write all bytes at a place."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, place)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rest, place = rest[written:], place + written


def read_at(descriptor: int, count: int, place: int) -> bytes:
    """Return the bytes at a place, fewer at the end; zeros where none were written."""
    found = bytearray()
    while len(found) < count:
        part = os.pread(descriptor, count - len(found), place + len(found))
        if not part:
            break
        found += part
    return bytes(found)
