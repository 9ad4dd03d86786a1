"""Recorded runs: JSONL, a head line, then one ``Update`` per line.

A recording may come from a stranger: lines are bounded, typed, and a bad one is skipped.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from client.control.updates import Update
from client.errors import UserError

RECORDING_VERSION = 1
MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_RECORDING_BYTES = 512 * 1024 * 1024


class Header(Struct, frozen=True):
    """The first line."""

    recording: int
    """Version of the format."""
    client: str
    """Version of the software that wrote it."""
    swarm_name: str
    started: float
    """Unix seconds."""


_headers = msgspec.json.Decoder(Header)
_updates = msgspec.json.Decoder(Update)


class Recorder:
    """Writes a front end's updates; stops at the largest size of the file.

    The file is readable by its owner only: it names the volunteers' addresses.

    Args:
        path: the file to write.
        client: version of the software.
        swarm_name: name of the swarm.
        started: Unix seconds of the start.

    Raises:
        UserError: the file is there already, or cannot be written.
    """

    def __init__(self, path: Path, client: str, swarm_name: str, started: float) -> None:
        self._path = path
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            self._file = os.fdopen(os.open(path, flags, 0o600), "wb")
        except OSError as error:
            problem = f"cannot record to {path}: {error.strerror}"
            raise UserError(problem, "choose another file with --record") from error
        self._size = 0
        self._write(Header(RECORDING_VERSION, client, swarm_name, started))

    def write(self, update: Update) -> bool:
        """Add an update; return False when no more can be written."""
        # events repeated in the snapshot are not written twice
        slim = msgspec.structs.replace(update.snapshot, events=[])
        try:
            return self._write(msgspec.structs.replace(update, snapshot=slim))
        except (OSError, ValueError):  # the disk is full, or it was closed
            return False

    def close(self) -> None:
        """Finish the file."""
        with contextlib.suppress(OSError):  # the part that could be written stays
            self._file.close()

    def _write(self, document: Struct) -> bool:
        line = msgspec.json.encode(document) + b"\n"
        if self._size + len(line) > MAX_RECORDING_BYTES:
            return False
        self._size += len(line)
        self._file.write(line)
        self._file.flush()
        return True


def read_header(path: Path) -> Header:
    """Return the first line of a recording.

    Raises:
        UserError: not a recording that this version reads.
    """
    try:
        with path.open("rb") as file:
            header = _headers.decode(file.readline(64 * 1024))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not a recorded run", "record one: --record FILE") from error
    if header.recording != RECORDING_VERSION:
        problem = f"{path} is a recording of version {header.recording}, not {RECORDING_VERSION}"
        raise UserError(problem, "play it with the version that wrote it")
    return header


def read_updates(path: Path) -> Iterator[Update]:
    """Yield the updates of a recording in order; invalid lines are skipped.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        file.readline(64 * 1024)
        while line := _next_line(file):
            try:
                yield _updates.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue


def _next_line(file: BinaryIO) -> bytes:
    """Return a line, empty at the end; lines that are too long are skipped."""
    line = file.readline(MAX_LINE_BYTES)
    while len(line) >= MAX_LINE_BYTES and not line.endswith(b"\n"):
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)
        line = file.readline(MAX_LINE_BYTES)
    return line
