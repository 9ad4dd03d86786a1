"""The steps of a run, for programs, in a folder of the owner's choice.

``metrics.jsonl`` has a line per step and is only appended to. A kill can tear the last line, which
is cut off before the next. After a restart it goes on, and a step that is told again is not written
twice. When the swarm is rolled back, the repeated steps follow, and the later line counts. Each
session has an event file for TensorBoard beside it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from msgspec import Struct

from client.store.event_file import file_head, file_name, scalars

NAME: Final = "metrics.jsonl"
MAX_LINE_BYTES: Final = 64 * 1024
REMEMBERED: Final = 4096
"""Steps by which one that is told again is recognised."""
TAIL_BYTES: Final = REMEMBERED * 256


class StepRecord(Struct, frozen=True, kw_only=True):
    """One committed step: a line of the file."""

    swarm: str
    """Beginning of its id."""
    step: int
    time: float
    """Unix seconds."""
    loss: float
    """Nats per token."""
    tokens: int
    """Trained on since the run began."""
    tokens_per_s: float | None
    """Of the swarm; None: not known yet."""
    members: list[int]
    """Volunteers that serve each stage."""
    grad_norm: dict[str, float]
    """By stage, before clipping, of the stages held here that have closed the step."""


_Key = tuple[str, int, float]
_lines = msgspec.json.Decoder(StepRecord)


class StepLog:
    """The files of one folder, of which one process writes.

    Args:
        folder: it is made when the first step is written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._events = folder / file_name(time.time(), os.getpid())
        self._known: dict[_Key, None] | None = None
        self._events_bytes = 0
        """Length of the event file as far as it is whole."""

    def append(self, records: Sequence[StepRecord]) -> None:
        """Write the steps that are not written yet.

        Raises:
            OSError: the disk is full or the folder cannot be used; the steps may be given again.
        """
        known, self._known = self._known, None  # after an error the file knows best
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            _cut_torn_line(file)
            if known is None:
                known = dict.fromkeys(map(_key, _tail(file)))
            fresh = [record for record in records if _key(record) not in known]
            file.write(b"".join(msgspec.json.encode(record) + b"\n" for record in fresh))
        for record in fresh:
            known[_key(record)] = None
            if len(known) > REMEMBERED:
                del known[next(iter(known))]
        self._known = known
        if fresh:
            self._append_events(fresh)

    def _append_events(self, records: Sequence[StepRecord]) -> None:
        head = b"" if self._events_bytes else file_head(records[0].time)
        data = head + b"".join(map(_event, records))
        with self._events.open("ab") as file:
            file.truncate(self._events_bytes)  # what a full disk has torn
            file.write(data)
        self._events_bytes += len(data)


def _key(record: StepRecord) -> _Key:
    return record.swarm, record.step, record.loss


def _cut_torn_line(file: BinaryIO) -> None:
    """Cut off a last line without its end."""
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - MAX_LINE_BYTES)
    file.seek(start)
    tail = file.read(MAX_LINE_BYTES)
    if tail and not tail.endswith(b"\n"):
        file.truncate(start + tail.rfind(b"\n") + 1)


def _tail(file: BinaryIO) -> list[StepRecord]:
    """Return the steps written last; lines of others are skipped."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL_BYTES))
    found = []
    for line in file.read(TAIL_BYTES).splitlines()[-REMEMBERED:]:
        try:
            found.append(_lines.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
    return found


def _event(record: StepRecord) -> bytes:
    values = {"loss": record.loss}
    if record.tokens_per_s is not None:
        values["tokens_per_s"] = record.tokens_per_s
    values |= {f"members/stage {stage}": float(n) for stage, n in enumerate(record.members)}
    values |= {f"grad_norm/stage {stage}": norm for stage, norm in record.grad_norm.items()}
    return scalars(record.step, record.time, values)
