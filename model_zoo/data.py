"""Samples of tokens as inputs and targets, and the text that every machine has."""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_zoo.specs.tokens import BEGINS, NOT_LEARNED

Bytes = NDArray[np.uint8]
"""Text as UTF-8."""
Tokens = NDArray[np.unsignedinteger[Any]]
BUILT_IN = "stdlib"
NO_TARGET = -100
"""Stands for a target whose loss is not counted, as torch's cross-entropy has it."""
_BUILT_IN_SIZE_BYTES = 8_000_000

# Tests and generated number tables are poor prose; some systems package the others apart.
_SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test", "encodings"}
    | {"ensurepip", "idlelib", "lib2to3", "tkinter", "turtledemo", "distutils"}
)
_BUILD_RECORD = "_sysconfigdata"  # differs on every machine


class DataError(Exception):
    """A data source cannot be used; the message says which, why and what would do."""


def built_in_text(folder: Path | None = None) -> bytes:
    """Return the source text of Python's standard library, which needs no download.

    Files in the order of their paths up to 8 MB, with normalised line ends. It differs between
    releases of Python.

    Raises:
        DataError: it is not there.
    """
    root = folder or Path(sysconfig.get_path("stdlib"))
    try:
        text = _join_sources(root)
    except OSError as error:
        raise DataError(f"cannot read Python's own source in {root}: {error}") from error
    if not text:
        raise DataError(f"{BUILT_IN} is empty; a corpus needs text")
    return text


def plain_tokens(tokens: Tokens) -> Tokens:
    """Return tokens without their bits: of those that are not learned, of those that begin."""
    return tokens & np.uint32(BEGINS - 1) if tokens.dtype.itemsize == 4 else tokens


def beginnings(samples: Tokens) -> NDArray[np.bool_]:
    """Return with which inputs (B, T) of samples (B, T + 1) a document begins, beside the first."""
    inputs = samples[:, :-1]
    return inputs & np.uint32(BEGINS) > 0 if inputs.dtype.itemsize == 4 else inputs < 0


def inputs_and_targets(samples: Tokens) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return inputs and targets (B, T) of samples (B, T + 1); a target that is not learned is
    `NO_TARGET`."""
    tokens = plain_tokens(samples).astype(np.int64)
    targets = tokens[:, 1:]
    if samples.dtype.itemsize == 4:
        targets = np.where(samples[:, 1:] >= NOT_LEARNED, NO_TARGET, targets)
    return tokens[:, :-1], targets


def _join_sources(root: Path) -> bytes:
    parts: list[bytes] = []
    size = 0
    for name in sorted(_source_files(root)):
        text = (root / name).read_bytes().decode("utf-8", "ignore").replace("\r\n", "\n").encode()
        parts.append(text)
        size += len(text)
        if size >= _BUILT_IN_SIZE_BYTES:
            break
    text = b"".join(parts)[:_BUILT_IN_SIZE_BYTES]
    return text[: text.rfind(b"\n") + 1]


def _source_files(root: Path) -> Iterator[str]:
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS]
        inside = Path(folder).relative_to(root)
        for name in files:
            if name.endswith(".py") and not name.startswith(_BUILD_RECORD):
                yield (inside / name).as_posix()
