"""A data folder: tokens in flat shards, the digests of their leaves, and an index.

- `shard-00000.bin`, …: unsigned little-endian integers, 1 GiB each but the last;
- `leaves.bin`: the digest of each 256 KiB of the shards, taken as one file;
- `tokenizer.json`, unless tokens are bytes;
- `index.json`: written last, so a folder with an index is complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from model_zoo.data import Bytes, DataError
from model_zoo.datasets.sources import RowPlace
from model_zoo.specs.data import DataSpec
from model_zoo.specs.merkle import DIGEST_BYTES, LEAF_BYTES, leaf_count, leaf_digest, root
from model_zoo.specs.shards import INDEX, LEAVES, TOKENIZER, shard_name, shard_sizes
from model_zoo.specs.tokens import TokenizerSpec
from model_zoo.tokenizers.bpe import BadTokenizer, Bpe

MAX_NAME = 40
LISTED_ROWS = 100
"""Rows that are left out and named; all are counted."""
MAX_ROW_CHARS = 500
_MAX_INDEX_BYTES = 1 << 20


class Tally(Struct, frozen=True, forbid_unknown_fields=True):
    """Counts of what was tokenized.

    Fields:
        texts, text_bytes: how many, and their size as UTF-8.
        replaced: places where a text was not UTF-8.
        learned: of conversations, tokens that are learned.
        padding: tokens that stand for nothing, at the ends of windows.
        cut: conversations that were longer than a window; their ends are left out.
        left_out: conversations whose answers all lie beyond the window.
        skipped: rows that cannot be used and are left out.
        listed: the first `LISTED_ROWS` of them.
    """

    texts: int = 0
    text_bytes: int = 0
    replaced: int = 0
    learned: int = 0
    padding: int = 0
    cut: int = 0
    left_out: int = 0
    skipped: int = 0
    listed: tuple[RowPlace, ...] = ()

    def plus(self, other: Tally) -> Tally:
        """Return the sum."""
        both = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        total = Tally(*(a + b for a, b in both))
        return msgspec.structs.replace(total, listed=total.listed[:LISTED_ROWS])


class Index(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What `index.json` says."""

    spec: DataSpec
    """What a manifest says of the data."""
    tally: Tally
    """What was made tokens of; without the places of rows, whose names are `skipped_rows`."""
    skipped_rows: tuple[str, ...] = ()
    """Names of the first `LISTED_ROWS` of them, and what is wrong with each."""


@dataclass(frozen=True)
class Folder:
    """An opened data folder; shards are mapped, not read."""

    path: Path
    index: Index
    tokenizer: Bpe | None
    shards: Sequence[Bytes]


def is_data_folder(path: Path) -> bool:
    """Whether a path is a folder of tokens that is complete."""
    return (path / INDEX).is_file()


def open_folder(path: Path) -> Folder:
    """Open a data folder; that its bytes have its digests is not checked.

    Raises:
        DataError: it is not complete, damaged, or unreadable.
    """
    index = _read_index(path)
    try:
        tokenizer = _read_tokenizer(path, index)
        sizes = shard_sizes(index.spec.size_bytes)
        shards = [_mapped(path, number, size) for number, size in enumerate(sizes)]
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error
    return Folder(path, index, tokenizer, shards)


def proven_leaves(folder: Folder, first: int = 0) -> Iterator[bytes]:
    """Read the leaves of a folder from one on.

    Raises:
        DataError: the digests themselves do not have the root, or cannot be read; or a leaf does
            not have its digest.
    """
    path, size = folder.path / LEAVES, folder.index.spec.size_bytes
    try:
        whole = path.stat().st_size == leaf_count(size) * DIGEST_BYTES
        sound = whole and root(kept_digests(folder.path)).hex() == folder.index.spec.digest
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if not sound:
        raise DataError(f"{path} is damaged: it does not lead to the folder's root")
    numbers = range(first, leaf_count(size))
    for number, digest in zip(numbers, kept_digests(folder.path, first), strict=True):
        leaf = read_leaf(folder.shards, number, 0, LEAF_BYTES)
        if leaf_digest(leaf) != digest:
            words = f"is damaged in its part {number} of 256 KiB: build it again"
            raise DataError(f"{folder.path} {words}")
        yield leaf


def read_leaf(shards: Sequence[Bytes], leaf: int, offset: int, size: int) -> bytes:
    """Return bytes of a leaf of shards, which are as large as the first and hold whole leaves, all
    but the last."""
    number, place = divmod(leaf * LEAF_BYTES + offset, shards[0].size)
    return shards[number][place : place + size].tobytes()


def kept_digests(path: Path, first: int = 0) -> Iterator[bytes]:
    """Return the digests of a folder's leaves as it says them, from leaf ``first`` on."""
    with (path / LEAVES).open("rb") as file:
        file.seek(first * DIGEST_BYTES)
        while digest := file.read(DIGEST_BYTES):
            yield digest


def name_of(path: Path) -> str:
    """Return a name for people of what is made of a path."""
    name = path.absolute().name.lstrip(".")[:MAX_NAME] or "data"
    return "".join(c if c.isprintable() else "?" for c in name)


def _read_index(path: Path) -> Index:
    try:
        with (path / INDEX).open("rb") as file:
            return msgspec.json.decode(file.read(_MAX_INDEX_BYTES), type=Index)
    except FileNotFoundError as error:
        raise DataError(f"{path} has no {INDEX}: no data folder, or one not completed") from error
    except OSError as error:
        raise DataError(f"cannot read {path / INDEX}: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise DataError(f"{path / INDEX} is damaged: {error}") from error


def _read_tokenizer(path: Path, index: Index) -> Bpe | None:
    if index.spec.tokenizer is None:
        return None
    with (path / TOKENIZER).open("rb") as file:
        data = file.read(index.spec.tokenizer.size_bytes + 1)
    return checked_tokenizer(data, index.spec.tokenizer, str(path / TOKENIZER))


def checked_tokenizer(data: bytes, spec: TokenizerSpec, name: str) -> Bpe:
    """Return the tokenizer of a file that should be the one described.

    Raises:
        DataError: it is another.
    """
    try:
        found = Bpe(data, spec.chat or None)
    except BadTokenizer as error:
        raise DataError(f"{name}: {error}") from error
    if found.digest != spec.digest or found.vocab != spec.vocab:
        raise DataError(f"{name} is not the tokenizer that made the tokens")
    return found


def _mapped(path: Path, number: int, size: int) -> Bytes:
    name = path / shard_name(number)
    found = np.memmap(name, dtype=np.uint8, mode="r")
    if found.size != size:
        raise DataError(f"{name} has {found.size} bytes instead of {size}: it is damaged")
    return found
