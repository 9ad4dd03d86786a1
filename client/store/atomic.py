"""Atomic writes: after a crash a file has either its old or its new content.

Data goes to a temporary file beside the target, is flushed to the disk, and takes the target's
name in one rename; the folder is flushed too. A full disk leaves the old file as it was.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

TEMPORARY_SUFFIX: Final = ".tmp"


@contextmanager
def replacing(
    path: Path, mode: int = 0o600, *, only_new: bool = False, durable: bool = True
) -> Iterator[BinaryIO]:
    """Yield a file to write; it becomes ``path`` when the block ends without an exception: after a
    crash of the system, too, if it is ``durable``; ``only_new``: a file that is there stays.

    Raises:
        OSError: the disk is full or the folder cannot be written; ``path`` is untouched.
    """
    descriptor, name = tempfile.mkstemp(
        prefix=f".{path.name}.", suffix=TEMPORARY_SUFFIX, dir=path.parent
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
        if only_new:
            with suppress(FileExistsError):
                os.link(name, path)
        else:
            os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
    if durable:
        flush_folder(path.parent)


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace the contents of ``path``; raises ``OSError`` as ``replacing`` does."""
    with replacing(path, mode) as file:
        file.write(data)


def flush_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_temporary(path: Path) -> bool:
    """Tell whether a file was left behind by an interrupted write."""
    return path.name.startswith(".") and path.name.endswith(TEMPORARY_SUFFIX)
