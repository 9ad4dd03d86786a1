"""The safetensors files of a folder, read one tensor at a time by their authors' library.

The files may come from anybody.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from model_zoo.specs.lfs import MAX_POINTER_BYTES, POINTER, is_pointer

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_MAX_JSON_BYTES = 16 << 20
_MAX_SHARDS = 4096


class FolderError(ValueError):
    """A folder that no model can be imported from, in words for its owner."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in its file: how it is called there, its shape, and its type as safetensors names
    it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Any

    def read(self) -> "Tensor":
        """Return its numbers, in its own type; raises FolderError if the file cannot be read, as
        one that has become shorter."""
        try:
            found: Tensor = self.file.get_tensor(self.name)
        except (OSError, SafetensorError) as error:
            raise FolderError(f"cannot read tensor {self.name}: {error}") from error
        return found


Shards = dict[str, Stored]
"""The tensors of a folder by name."""


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
    placed, shards, files = _index(folder), Shards(), dict[str, str]()
    with ExitStack() as opened:
        for name in sorted(set(placed.values())) or [WEIGHTS]:
            path = folder / name
            file = opened.enter_context(_opened(path))
            for tensor in file.keys():  # noqa: SIM118  (it is no dict)
                if tensor in shards:
                    raise FolderError(f"tensor {tensor} is in {path} and in another file")
                part = file.get_slice(tensor)
                shards[tensor] = Stored(tensor, tuple(part.get_shape()), part.get_dtype(), file)
                files[tensor] = name
        for tensor, name in placed.items():
            if files.get(tensor) != name:
                place = folder / name
                raise FolderError(f"tensor {tensor} is not in {place}, where {INDEX} says")
        yield shards


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


def _opened(path: Path) -> Any:
    """Open one file; raises FolderError if it is missing or damaged.

    It is not mapped: a file that becomes shorter while it is mapped ends the process.
    """
    try:
        with path.open("rb") as file:
            if is_pointer(file.read(MAX_POINTER_BYTES)):
                raise FolderError(f"{path} {POINTER}")
        return safe_open(path, framework="pt", backend="pread")
    except OSError as error:
        raise FolderError(f"cannot read {path}: {error.strerror}") from error
    except SafetensorError as error:
        raise FolderError(f"{path} is damaged: {error}") from error
