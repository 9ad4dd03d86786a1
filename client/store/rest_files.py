"""The files of a home that hold text or weights, and their conversion to encrypted ones and back.

Other files lie beside them, such as the lineage of a run and the path of a founder's original; they
hold neither and stay plain. Only a process that holds the identity's lock may convert.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from client.at_rest import CHUNK_BYTES, is_encrypted, open_read, writing
from client.store.atomic import is_temporary, replacing
from client.store.paths import Entry

HELD: Final = {
    Entry.CHECKPOINTS: (".safetensors", ".buddy"),
    Entry.TEXTS: (".bin", ".leaf"),
    Entry.SNAPSHOTS: ("",),
}
"""By folder, what the names of its files of text or weights contain."""
WORKING_COPIES: Final = Entry.SNAPSHOTS


def kept_files(data: Path, *, encrypted: bool) -> list[Path]:
    """Return the files that are encrypted, or those that are not; empty ones are neither.

    Raises:
        OSError: one cannot be read.
    """
    found = []
    for path in _files(data):
        with suppress(FileNotFoundError):  # removed meanwhile
            if path.stat().st_size and is_encrypted(path) is encrypted:
                found.append(path)
    return found


def remove_working_copies(data: Path) -> None:
    """Remove what can be made or fetched again: snapshots, partial downloads, interrupted writes.

    Raises:
        OSError: the disk refuses.
    """
    for path in list(_files(data)):
        if is_temporary(path) or path.parent == data / WORKING_COPIES:
            path.unlink(missing_ok=True)


def rewrite(path: Path) -> int:
    """Write a file again as this process writes files, encrypted or plain; return its plain bytes.

    Raises:
        OSError: it is damaged or of another key, or the disk is full; the file stays as it was.
    """
    status, count = path.stat(), 0
    with open_read(path) as source, replacing(path) as file, writing(file) as copy:
        while piece := source.read(CHUNK_BYTES):
            copy.write(piece)
            count += len(piece)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return count


def _files(data: Path) -> Iterator[Path]:
    for folder, marks in HELD.items():
        for path in sorted((data / folder).rglob("*")):
            held = any(mark in path.name for mark in marks)
            if held and path.is_file() and not path.is_symlink():
                yield path
