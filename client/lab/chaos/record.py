"""Reads the volunteers' logs while they write them; their text is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

MAX_LINE_BYTES = 64 * 1024
READ_BYTES = 1 << 20


class _Line(Struct, frozen=True):
    time: float
    kind: str
    level: str = "info"
    words: str = ""
    data: dict[str, object] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Note:
    """One event of one volunteer."""

    name: str
    life: int
    """Number of its process, from 1."""
    time: float
    """Unix seconds."""
    kind: str
    """Name of the event's type in ``client.events``."""
    level: str
    words: str
    data: dict[str, object]

    def number(self, field: str) -> int | None:
        """Return a whole number of the event, None if it has none there."""
        value = self.data.get(field)
        return value if isinstance(value, int) else None

    def text(self, field: str) -> str:
        """Return a text of the event, empty if it has none there."""
        value = self.data.get(field)
        return value if isinstance(value, str) else ""


_lines = msgspec.json.Decoder(_Line)


class LogTail:
    """Reads the JSON lines that are added to a file; other lines are skipped."""

    def __init__(self, path: Path, name: str, life: int) -> None:
        self._path, self._name, self._life = path, name, life
        self._offset = 0

    def new_notes(self) -> Iterator[Note]:
        """Yield the complete lines added since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(READ_BYTES)
        except OSError:
            return
        whole, found, rest = data.rpartition(b"\n")
        if not found:
            if len(rest) > MAX_LINE_BYTES:
                self._offset += len(rest)
            return
        self._offset += len(whole) + 1
        for line in whole.split(b"\n"):
            note = self._note(line)
            if note is not None:
                yield note

    def _note(self, line: bytes) -> Note | None:
        if not line.startswith(b"{") or len(line) > MAX_LINE_BYTES:
            return None
        try:
            found = _lines.decode(line)
        except msgspec.MsgspecError:
            return None
        return Note(
            self._name,
            self._life,
            found.time,
            found.kind,
            found.level,
            found.words,
            found.data,
        )


class Reached(Struct, frozen=True):
    """A failpoint that acted, as logged by the process right before."""

    time: float
    """Unix seconds."""
    pid: int
    failpoint: str
    phase: str
    action: str
    step: int
    stage: int
    seconds: float = 0.0


_reached = msgspec.json.Decoder(Reached)


class FailpointLog:
    """Reads the lines of a failpoint log once each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = 0

    def new(self) -> list[Reached]:
        """Return the failpoints reached since the last call."""
        try:
            text = self._path.read_bytes()
        except OSError:
            return []
        whole = text.split(b"\n")[:-1]
        fresh, self._lines = whole[self._lines :], len(whole)
        found = []
        for line in fresh:
            try:
                found.append(_reached.decode(line))
            except msgspec.MsgspecError:
                continue
        return found
