"""The log that a node keeps in its data folder: JSON lines, of bounded size, for ``logs``.

A line is what ``--log-format json`` prints. The newest file is ``volunteer.log``; when it is full
it becomes ``volunteer.log.1`` and so on, and the oldest goes.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct, field

from client.store.paths import create_folders

NAME = "volunteer.log"
ERRORS_NAME = "errors.log"
"""Tracebacks, and other output of a node in the background."""
MAX_ERROR_BYTES = 2**20
"""Bytes after which the file begins again: a node that crashes at every start must not fill the
disk."""
MAX_BYTES = 4 * 2**20
KEPT = 3
"""Files, the newest included."""
MAX_LINE_BYTES = 64 * 1024


class Line(Struct, frozen=True):
    """One line of the log."""

    time: float
    """Unix seconds."""
    level: str
    words: str
    kind: str = ""
    data: dict[str, object] = field(default_factory=dict)


_lines = msgspec.json.Decoder(Line)


class LogFile(RotatingFileHandler):
    """Appends lines; a line that cannot be written is lost, because training does not depend on the
    log."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(folder / NAME, maxBytes=max_bytes, backupCount=KEPT - 1, delay=True)

    def write(self, line: str) -> None:
        """Add a line."""
        self.emit(logging.makeLogRecord({"msg": line[: MAX_LINE_BYTES - 1]}))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's name)
        """Begin anew with the next line."""
        with suppress(OSError):
            self.close()

    def _open(self) -> TextIOWrapper:
        return TextIOWrapper(_appending(Path(self.baseFilename)), "utf-8", "replace")


def append_error(folder: Path, text: str) -> Path | None:
    """Add a traceback to the errors in a log folder; return the file, None if it cannot be
    written."""
    try:
        with open_errors(folder) as file:
            file.write(text.encode(errors="replace"))
    except OSError:
        return None
    return folder / ERRORS_NAME


def open_errors(folder: Path) -> BinaryIO:
    """Open the errors in a log folder, to add to what earlier runs have left there; raises
    ``OSError``."""
    file = _appending(folder / ERRORS_NAME)
    if file.tell() > MAX_ERROR_BYTES:
        file.truncate(0)
        file.seek(0)
    return file


def _appending(path: Path) -> BinaryIO:
    create_folders(path.parent)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "ab")


def log_files(folder: Path) -> list[Path]:
    """Return the existing files of a log, oldest first."""
    numbered = [folder / f"{NAME}.{number}" for number in range(KEPT - 1, 0, -1)]
    return [path for path in (*numbered, folder / NAME) if path.exists()]


def read_lines(folder: Path) -> Iterator[Line]:
    """Yield the lines of the log, oldest first; invalid ones are skipped."""
    for path in log_files(folder):
        with path.open("rb") as file:
            yield from lines_of(file)


def lines_of(file: BinaryIO) -> Iterator[Line]:
    """Yield the lines of an open file from its position to its end."""
    while True:
        start = file.tell()
        raw = file.readline(MAX_LINE_BYTES)
        if not raw.endswith(b"\n") and len(raw) < MAX_LINE_BYTES:
            file.seek(start)  # half written: the rest comes later
            return
        try:
            yield _lines.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
