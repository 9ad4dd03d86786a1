"""Folders of a model, whose files appear together or not at all."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from model_zoo.models.family import State

_NUMBER = re.compile(r"os error (\d+)")


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A new folder to write files to; they take their places in `folder` once all of them are
    safely on disk, weights last. If the block fails, `folder` is as it was, and not made.

    Raises:
        OSError: the disk does not take them.
    """
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    partial = folder / f".{os.getpid()}.partial"
    try:
        partial.mkdir(parents=True)
        yield partial
        files = sorted(partial.iterdir(), key=lambda path: path.suffix in (".safetensors", ".gguf"))
        for path in files:
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        for path in files:
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        for one in made:
            with suppress(OSError):  # it has the files
                one.rmdir()


def save_tensors(tensors: State, path: Path) -> None:
    """Write a safetensors file, for those who may read what else its owner writes.

    Raises:
        OSError: the disk does not take it.
    """
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        number = _NUMBER.search(str(error))
        if number is None:
            raise
        code = int(number[1])
        raise OSError(code, os.strerror(code), str(path)) from error
    path.chmod(mode)
