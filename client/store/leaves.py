"""Leaves of token data on this disk: a whole data folder, or a cache of what was fetched.

A leaf is given out with its path to the root behind it, proven: the same bytes are sent, kept and
checked. Both kinds read and prove a leaf when it is asked for, and not before: a folder may have
terabytes, and what is in the cache may have been damaged since. ``load`` may be called in any
thread, since a disk may be slow; ``note`` takes what it found.

The cache has a file for each leaf and a budget. What was used longest ago is removed first. Files
are not flushed: one that was lost or torn is fetched again.
"""

import os
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from client.store.atomic import replacing
from model_zoo.specs.data import DataSpec
from model_zoo.specs.merkle import (
    DIGEST_BYTES,
    LEAF_BYTES,
    PAGE,
    Tree,
    is_proven,
    leaf_count,
    leaf_size,
    proven_size,
)
from model_zoo.specs.shards import (
    LEAVES,
    SHARD_BYTES,
    TOKENIZER,
    leaf_name,
    shard_name,
    shard_sizes,
)

_TREES: Final = 16
"""Of pages of leaves, each made when one of them is asked for; the tree above the pages is in
memory: 2.6 MB for 10 TB."""


class WrongFolder(Exception):
    """A folder does not have the data that it should have; says why."""


class DataFolder:
    """A whole data folder, read in place.

    Args:
        folder: of ``volunteer data build``.
        data: the data that it should have.

    Raises:
        WrongFolder: it has other data, or is damaged as far as its sizes and digests tell.
        OSError: it cannot be read.
    """

    def __init__(self, folder: Path, data: DataSpec) -> None:
        self.folder, self._data = folder, data
        self._count = leaf_count(data.size_bytes)
        for number, size in enumerate(shard_sizes(data.size_bytes)):
            found = (folder / shard_name(number)).stat().st_size
            if found != size:
                raise WrongFolder(f"{folder / shard_name(number)} has {found} bytes, not {size}")
        if (folder / LEAVES).stat().st_size != self._count * DIGEST_BYTES:
            raise WrongFolder(f"{folder / LEAVES} does not have {self._count} digests")
        self._page = lru_cache(maxsize=_TREES)(self._read_page)
        roots = (self._read_page(page).root for page in range(-(-self._count // PAGE)))
        self._above = Tree(roots)
        if self._above.root.hex() != data.digest:
            found_root = self._above.root.hex()
            raise WrongFolder(f"{folder} has the root {found_root[:12]}, not {data.digest[:12]}")

    @property
    def tokenizer(self) -> Path:
        """The file of the tokenizer, if the data bring one."""
        return self.folder / TOKENIZER

    def load(self, index: int) -> bytes | None:
        """Return a leaf with its path behind it; None: it is not here, or damaged."""
        if not 0 <= index < self._count:
            return None
        number, place = divmod(index * LEAF_BYTES, SHARD_BYTES)
        size = leaf_size(index, self._data.size_bytes)
        try:
            leaf = _read(self.folder / shard_name(number), place, size)
            page = self._page(index // PAGE)
        except OSError:
            return None
        path = [*page.path(index % PAGE), *self._above.path(index // PAGE)]
        proven = leaf + b"".join(path)
        sound = is_proven(proven, index, self._data.size_bytes, self._data.digest)
        return proven if sound else None

    def _read_page(self, page: int) -> Tree:
        size = min(PAGE, self._count - page * PAGE) * DIGEST_BYTES
        found = _read(self.folder / LEAVES, page * PAGE * DIGEST_BYTES, size)
        return Tree(found[at : at + DIGEST_BYTES] for at in range(0, len(found), DIGEST_BYTES))


class LeafCache:
    """See the module's docstring.

    Args:
        folder: of its files; made when the first leaf is kept.
        data: the data whose leaves it keeps.
        budget_bytes: for all files together.
    """

    def __init__(self, folder: Path, data: DataSpec, budget_bytes: int) -> None:
        self.folder, self._data, self._budget = folder, data, budget_bytes
        self._proven: set[int] = set()
        """Leaves that were read or kept by this process."""
        self._kept: OrderedDict[int, int] = OrderedDict()
        """Leaf to its size, the one used longest ago first."""
        self.size_bytes = 0
        for _, index, size in sorted(self._found()):
            self._kept[index] = size
            self.size_bytes += size
        self._make_room(0, frozenset())

    @property
    def empty(self) -> bool:
        """Whether there is no leaf at all."""
        return not self._kept

    def path(self, index: int) -> Path:
        """Return the file of a leaf, whether it is there or not."""
        return self.folder / leaf_name(index)

    def has_unread(self, index: int) -> bool:
        """Whether an earlier process kept a leaf that this one has not read."""
        return index in self._kept and index not in self._proven

    def has(self, index: int) -> bool:
        """Whether a leaf is here, and was read or kept by this process."""
        if index not in self._proven:
            return False
        self._kept.move_to_end(index)
        return True

    def load(self, index: int) -> bytes | None:
        """As that of a whole folder."""
        try:
            loaded = self.path(index).read_bytes()
        except OSError:
            return None
        sound = is_proven(loaded, index, self._data.size_bytes, self._data.digest)
        return loaded if sound else None

    def note(self, index: int, loaded: bytes | None) -> bytes | None:
        """Take what ``load`` has returned of a leaf, and return it; a damaged one is removed."""
        if index in self._kept:
            if loaded is None:
                self._remove(index)
            else:
                self._proven.add(index)
                self._kept.move_to_end(index)
        return loaded

    def keep(self, index: int, proven: bytes, needed: Collection[int]) -> None:
        """Keep a leaf that is proven.

        Args:
            index: the leaf.
            proven: with its path behind it.
            needed: leaves that are not removed for it.

        Raises:
            OSError: the disk is full or not writable.
        """
        self._make_room(len(proven), needed)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(self.path(index), durable=False) as file:
            file.write(proven)
        self.size_bytes += len(proven) - self._kept.pop(index, 0)
        self._kept[index] = len(proven)
        self._proven.add(index)

    def _found(self) -> list[tuple[int, int, int]]:
        """Return what is on disk: when it was written, leaf, size."""
        found = []
        with suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                name = entry.name.removesuffix(".leaf")
                if name.isdecimal() and int(name) < leaf_count(self._data.size_bytes):
                    index = int(name)
                    size = proven_size(index, self._data.size_bytes)
                    found.append((entry.stat().st_mtime_ns, index, size))
        return found

    def _make_room(self, size: int, needed: Collection[int]) -> None:
        if self.size_bytes + size <= self._budget:
            return
        for index in [index for index in self._kept if index not in needed]:
            self._remove(index)
            if self.size_bytes + size <= self._budget:
                return

    def _remove(self, index: int) -> None:
        self.size_bytes -= self._kept.pop(index, 0)
        self._proven.discard(index)
        with suppress(OSError):
            self.path(index).unlink(missing_ok=True)


def _read(path: Path, place: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(place)
        return file.read(size)
