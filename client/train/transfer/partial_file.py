"""A file whose chunks are written in any order, and which the next process continues."""

from __future__ import annotations

import errno
import os
from pathlib import Path


class PartialFile:
    """An unfinished file at ``path``, opened or created; methods raise ``OSError``."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @property
    def length(self) -> int:
        """Bytes up to the last one that was written; there may be holes."""
        return os.fstat(self.descriptor).st_size

    def write(self, place: int, data: bytes) -> None:
        """Write bytes at a place."""
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self.descriptor, rest, place)
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            rest, place = rest[written:], place + written

    def read(self, place: int, count: int) -> bytes:
        """Return the bytes at a place, fewer at the end; zeros where none were written."""
        found = bytearray()
        while len(found) < count:
            part = os.pread(self.descriptor, count - len(found), place + len(found))
            if not part:
                break
            found += part
        return bytes(found)

    def finish(self, size: int) -> None:
        """The file is complete with so many bytes."""
        os.ftruncate(self.descriptor, size)

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)
