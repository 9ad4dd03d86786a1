"""The steps of a run, for programs, in a folder of the owner's choice.

``metrics.jsonl`` has a line per step, and one per version whose loss on held-out text is told, with
other fields. It is only appended to. A kill can tear the last line, which is cut off before the
next. After a restart it goes on, and a step that is told again is not written twice. When the swarm
is rolled back, the repeated steps follow, and the later line counts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from msgspec import Struct

from client.decoding import json_decoder

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

    @property
    def key(self) -> _Key:
        """By which it is known again."""
        return self.swarm, self.step, self.loss


class HeldOutRecord(Struct, frozen=True, kw_only=True):
    """The loss of one version on held-out text: a line of the file; a later one of the same version
    counts, because more members have told theirs by then."""

    swarm: str
    step: int
    """The version: after so many steps."""
    time: float
    held_out_loss: float
    """Nats per token."""
    bits_per_byte: float
    held_out_tokens: int
    vouchers: int
    """Members whose number this is."""
    claims: int
    """Members that told one of this version."""

    @property
    def key(self) -> _Key:
        """By which it is known again."""
        return self.swarm, self.step, "held out", self.held_out_loss, self.vouchers, self.claims


_Key = tuple[str | int | float, ...]
LogRecord = StepRecord | HeldOutRecord
_KINDS: Final[tuple[type[LogRecord], ...]] = StepRecord, HeldOutRecord


class StepLog:
    """The files of one folder, of which one process writes.

    Args:
        folder: it is made when the first step is written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._known: dict[_Key, None] | None = None

    def append(self, records: Sequence[LogRecord]) -> None:
        """Write the steps that are not written yet.

        Raises:
            OSError: the disk is full or the folder cannot be used; the steps may be given again.
        """
        known, self._known = self._known, None  # after an error the file knows best
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            _cut_torn_line(file)
            if known is None:
                known = dict.fromkeys(record.key for record in _tail(file))
            fresh = [record for record in records if record.key not in known]
            file.write(b"".join(msgspec.json.encode(record) + b"\n" for record in fresh))
        for record in fresh:
            known[record.key] = None
            if len(known) > REMEMBERED:
                del known[next(iter(known))]
        self._known = known


def _cut_torn_line(file: BinaryIO) -> None:
    """Cut off a last line without its end."""
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - MAX_LINE_BYTES)
    file.seek(start)
    tail = file.read(MAX_LINE_BYTES)
    if tail and not tail.endswith(b"\n"):
        file.truncate(start + tail.rfind(b"\n") + 1)


def _tail(file: BinaryIO) -> list[LogRecord]:
    """Return the steps written last; lines of others are skipped."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL_BYTES))
    lines = file.read(TAIL_BYTES).splitlines()[-REMEMBERED:]
    return [record for line in lines if (record := _parsed(line)) is not None]


def _parsed(line: bytes) -> LogRecord | None:
    for kind in _KINDS:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return json_decoder(kind).decode(line)
    return None
