"""The safetensors files of a folder, read one tensor at a time.

The files may come from anybody. A tensor is read by its place, so that a stage's tensors are read
without the others.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_zoo.specs.lfs import MAX_POINTER_BYTES, POINTER, is_pointer
from model_zoo.specs.tensor_headers import LENGTH_BYTES, Entry, header_length, parse_header

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_MAX_JSON_BYTES = 16 << 20
_MAX_SHARDS = 4096


class FolderError(ValueError):
    """A folder that no model can be imported from, in words for its owner."""


@dataclass(slots=True)
class Shards:
    """The tensors of a folder.

    Fields:
        entries: each tensor by name, with its file and where the file's data begins.
        bytes_read: of tensors, so far.
    """

    entries: dict[str, tuple[Path, int, Entry]]
    bytes_read: int = 0
    _open: dict[Path, int] = field(default_factory=dict)

    def read(self, name: str) -> bytearray:
        """Return a tensor's bytes, as they are in its file.

        Raises:
            FolderError: the file has become shorter.
            OSError: it cannot be read.
        """
        path, start, entry = self.entries[name]
        begin, end = entry.data_offsets
        if path not in self._open:
            self._open[path] = os.open(path, os.O_RDONLY)
        found = _pread(self._open[path], start + begin, end - begin, path)
        self.bytes_read += len(found)
        return found

    def close(self) -> None:
        """Close the files."""
        while self._open:
            os.close(self._open.popitem()[1])


def read_json(path: Path) -> dict[str, Any]:
    """Return an object from a file of a folder.

    Raises:
        FolderError: it is missing, too long or no JSON object.
    """
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise FolderError(f"{path} is too long")
        data = path.read_bytes()
        if is_pointer(data):
            raise FolderError(f"{path} {POINTER}")
        found = json.loads(data)
    except OSError as error:
        raise FolderError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise FolderError(f"{path} is not a JSON object")
    return found


@contextmanager
def open_shards(folder: Path) -> Iterator[Shards]:
    """Open the weights of a folder: one file, or several with an index.

    Raises:
        FolderError: a file is missing or damaged, or a tensor is not where the index says.
    """
    shards = Shards({})
    placed = _index(folder)
    for name in sorted(set(placed.values())) or [WEIGHTS]:
        path = folder / name
        for tensor, entry, start in _header(path):
            if tensor in shards.entries:
                raise FolderError(f"tensor {tensor} is in {path} and in another file")
            shards.entries[tensor] = (path, start, entry)
    for tensor, name in placed.items():
        if tensor not in shards.entries or shards.entries[tensor][0].name != name:
            raise FolderError(f"tensor {tensor} is not in {folder / name}, where {INDEX} says")
    try:
        yield shards
    finally:
        shards.close()


def _index(folder: Path) -> dict[str, str]:
    """Return the file of each tensor; empty where one file has them all."""
    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        if not (folder / WEIGHTS).exists():
            raise FolderError(_nothing(folder))
        return {}
    placed = read_json(folder / INDEX).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise FolderError(f"{folder / INDEX} has no weight_map")
    names = set(map(str, placed.values()))
    for name in names:
        if name != Path(name).name or not name.endswith(".safetensors"):
            raise FolderError(f"{folder / INDEX} names {name[:80]!r}, which is no file beside it")
        if not (folder / name).exists():
            raise FolderError(f"{folder / name} is missing: download it again")
    if len(names) > _MAX_SHARDS:
        raise FolderError(f"{folder / INDEX} names more than {_MAX_SHARDS} files")
    return placed


def _nothing(folder: Path) -> str:
    if any(folder.glob("*.bin")):
        return (
            f"{folder} has weights in pickle, which can run code and is never read: take the "
            "folder's safetensors"
        )
    return f"{folder} has neither {WEIGHTS} nor {INDEX}"


def _header(path: Path) -> Iterator[tuple[str, Entry, int]]:
    """Return the tensors of one file, with the place at which its data begins."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            first = os.pread(descriptor, MAX_POINTER_BYTES, 0)
            if is_pointer(first):
                raise FolderError(f"{path} {POINTER}")
            text = bytes(_pread(descriptor, LENGTH_BYTES, header_length(first, size), path))
            start = LENGTH_BYTES + len(text)
            entries = parse_header(text, size - start)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise FolderError(f"cannot read {path}: {error.strerror}") from error
    except FolderError:
        raise
    except ValueError as error:
        raise FolderError(f"{path} is damaged: {error}") from error
    return ((name, entry, start) for name, entry in entries.items())


def _pread(descriptor: int, offset: int, size: int, path: Path) -> bytearray:
    found = bytearray(size)
    view = memoryview(found)
    while view:
        count = os.preadv(descriptor, [view[: 1 << 30]], offset)
        if not count:
            raise FolderError(f"{path} has become shorter")
        view, offset = view[count:], offset + count
    return found
