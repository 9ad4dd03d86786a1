"""The bytes behind the payload keys of a seat, until their step is over.

Bytes stay in memory up to a budget; over it the oldest go to disk, into one file per step. The file
is unlinked from the start, so it disappears with its step or with the process. The store handles
keys and bytes, not tensors. Not thread-safe.
"""

import tempfile
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from client.store.paths import create_folders
from client.store.positioned import read_at, write_at
from protocol.pipeline.effects import PayloadKey


class PayloadGone(Exception):
    """Nothing is stored under the key any more (its step is over, or the disk lost it)."""


class StoreFull(Exception):
    """The budgets of memory and disk are exhausted; nothing was stored."""


@dataclass(slots=True)
class _Spill:
    """The file of one step: entries are appended and never moved."""

    file: BinaryIO
    end: int = 0
    places: dict[PayloadKey, tuple[int, int]] = field(default_factory=dict)


class BoundaryStore:
    """Bytes by key; spills the oldest to disk.

    Args:
        memory_bytes: budget of memory.
        disk_bytes: budget of the spill files.
        folder: where the spill files are; made when the first one is needed. Not the system's
            temporary folder, which is often in memory.
    """

    def __init__(self, memory_bytes: int, disk_bytes: int, folder: Path) -> None:
        self.budget_bytes = memory_bytes + disk_bytes
        self._memory_budget = memory_bytes
        self._disk_budget = disk_bytes
        self._folder = folder
        self._memory: OrderedDict[PayloadKey, bytes] = OrderedDict()
        self._spills: dict[int, _Spill] = {}
        self._memory_bytes = 0
        self._of = Counter[str]()  # bytes, by the peer that a key names

    def put(self, key: PayloadKey, data: bytes) -> None:
        """Store bytes under a key, replacing earlier ones.

        Raises:
            StoreFull: no room within the budgets, or the disk is full.
        """
        if len(data) > self._memory_budget:
            raise StoreFull(f"one boundary of {len(data)} bytes is above the memory budget")
        while self._memory_bytes + len(data) > self._memory_budget:
            self._spill_oldest()
        self.drop(key)
        self._memory[key] = data
        self._memory_bytes += len(data)
        self._of[key.peer] += len(data)

    def get(self, key: PayloadKey) -> bytes:
        """Return the bytes of a key; raises ``PayloadGone``."""
        data = self._memory.get(key)
        data = self._read(key) if data is None else data
        if data is None:
            raise PayloadGone(str(key))
        return data

    def __contains__(self, key: PayloadKey) -> bool:
        return key in self._memory or self._place(key) is not None

    def bytes_of(self, peer: str) -> int:
        """Return the bytes stored under keys that name a peer."""
        return self._of[peer]

    def drop(self, key: PayloadKey) -> None:
        """Remove one key; its space on disk is freed with its step."""
        size_bytes = 0
        if (data := self._memory.pop(key, None)) is not None:
            size_bytes = len(data)
            self._memory_bytes -= size_bytes
        if (spill := self._spills.get(key.step)) is not None:
            size_bytes += spill.places.pop(key, (0, 0))[1]
        self._of[key.peer] -= size_bytes
        if not self._of[key.peer]:
            del self._of[key.peer]

    def drop_step(self, step: int) -> None:
        """Remove all keys of one step."""
        spill = self._spills.get(step)
        for key in [*self._memory, *(spill.places if spill is not None else ())]:
            if key.step == step:
                self.drop(key)
        if spill is not None:
            self._spills.pop(step).file.close()

    def close(self) -> None:
        """Remove everything."""
        for step in {key.step for key in self._memory} | set(self._spills):
            self.drop_step(step)

    def _spill_oldest(self) -> None:
        key, data = next(iter(self._memory.items()))
        if self._disk_bytes() + len(data) > self._disk_budget:
            raise StoreFull(f"{self._disk_budget} bytes of disk are in use for boundaries")
        try:
            spill = self._spills.get(key.step) or self._open_spill(key.step)
            write_at(spill.file.fileno(), data, spill.end)
        except OSError as error:
            raise StoreFull(f"cannot spill a boundary to disk: {error.strerror}") from error
        spill.places[key] = (spill.end, len(data))
        spill.end += len(data)
        del self._memory[key]
        self._memory_bytes -= len(data)

    def _open_spill(self, step: int) -> _Spill:
        create_folders(self._folder)
        # closed by drop_step; unbuffered, because only its descriptor is used
        file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
        spill = self._spills[step] = _Spill(file)
        return spill

    def _place(self, key: PayloadKey) -> tuple[int, int] | None:
        spill = self._spills.get(key.step)
        return None if spill is None else spill.places.get(key)

    def _read(self, key: PayloadKey) -> bytes | None:
        place = self._place(key)
        if place is None:
            return None
        offset, size_bytes = place
        data = read_at(self._spills[key.step].file.fileno(), size_bytes, offset)
        return data if len(data) == size_bytes else None

    def _disk_bytes(self) -> int:
        return sum(spill.end for spill in self._spills.values())
