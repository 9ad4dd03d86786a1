"""The loss curve of a swarm on disk: one small file of fixed-size records, oldest first.

Steps are appended as they come, so that a killed process has lost none. Each record has a checksum,
and reading ends at the first torn one. A caller that thins or truncates the curve replaces the
whole file.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from client.store.atomic import write_atomic

_BODY: Final = struct.Struct("<Qddd")
"""Step, Unix seconds, loss, tokens per second."""
RECORD_BYTES: Final = _BODY.size + 4
MAX_RECORDS: Final = 16 * 1024


class Sample(NamedTuple):
    """One step of the run."""

    step: int
    wall: float
    """Unix seconds at which it was committed."""
    loss: float
    tokens_per_s: float


class CurveFile:
    """The curve of one swarm; raises ``OSError`` where the disk does."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[Sample]:
        """Return the samples in the order of writing; none if the file cannot be read."""
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_RECORDS * RECORD_BYTES)
        except OSError:
            return []
        points = []
        for start in range(0, len(data) - RECORD_BYTES + 1, RECORD_BYTES):
            point = _parse(data[start : start + RECORD_BYTES])
            if point is None:
                break
            points.append(point)
        return points

    def append(self, point: Sample) -> None:
        """Append a step. It survives a kill of the process, not necessarily a power cut."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(_record(point))

    def replace(self, points: Sequence[Sample]) -> None:
        """Replace the whole curve atomically."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self._path, b"".join(map(_record, points)))


def _record(point: Sample) -> bytes:
    body = _BODY.pack(point.step, point.wall, point.loss, point.tokens_per_s)
    return body + zlib.crc32(body).to_bytes(4, "little")


def _parse(record: bytes) -> Sample | None:
    body = record[: _BODY.size]
    if zlib.crc32(body).to_bytes(4, "little") != record[_BODY.size :]:
        return None
    step, *numbers = _BODY.unpack(body)
    return Sample(step, *numbers) if all(map(math.isfinite, numbers)) else None
