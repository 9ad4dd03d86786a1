"""Reads the volunteers' logs while they write them; their text is bounded."""

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
    """Reads the JSON lines that are added to a log; other lines are skipped."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name, self._offset = path, name, 0

    def new_notes(self) -> Iterator[Note]:
        """Yield the events added since the last call."""
        for line in self._new_lines():
            if (note := self._note(line)) is not None:
                yield note

    def _new_lines(self) -> list[bytes]:
        """Return the complete lines added since the last call; one that is too long is skipped."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(READ_BYTES)
        except OSError:
            return []
        whole, found, rest = data.rpartition(b"\n")
        if not found:
            if len(rest) > MAX_LINE_BYTES:
                self._offset += len(rest)
            return []
        self._offset += len(whole) + 1
        return whole.split(b"\n")

    def _note(self, line: bytes) -> Note | None:
        if not line.startswith(b"{") or len(line) > MAX_LINE_BYTES:
            return None
        try:
            found = _lines.decode(line)
        except msgspec.MsgspecError:
            return None
        return Note(self._name, *msgspec.structs.astuple(found))
