"""The lineage this volunteer last followed in a swarm, whom it met at the beginning of that and of
earlier ones, and its evidence of the run: three files.

A damaged or unusable file is set aside under another name; the other members then supply the state
of the run.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec

from client.decoding import packed_decoder
from client.store.atomic import write_atomic
from protocol.recovery.evidence import Kept
from protocol.recovery.stored import HIGHEST_NUMBER, Lineage
from protocol.rounds.beginnings import MAX_BEGINNINGS, Beginnings, Met

FILE_NAME: Final = "lineage.bin"
EVIDENCE_NAME: Final = "evidence.bin"
BEGINNINGS_NAME: Final = "beginnings.bin"
SET_ASIDE: Final = ".unusable"
MAX_FILE_BYTES: Final = 1024 * 1024

_T = TypeVar("_T")
_Met = Annotated[tuple[Met, ...], msgspec.Meta(max_length=MAX_BEGINNINGS)]


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """Content of the evidence file."""

    kept: Kept = Kept()
    wall: float = 0.0
    """Unix seconds at which it was written."""


def load_lineage(folder: Path, stages: int, steps: int) -> tuple[Lineage, str]:
    """Return the lineage kept in a swarm's checkpoint folder, and a warning if it was set aside.

    Without a usable file it is the first lineage; without a problem the warning is empty.

    Args:
        folder: the swarm's checkpoint folder.
        stages: number of stages of the run.
        steps: number of steps of the run; no lineage begins later.
    """
    path = folder / FILE_NAME
    try:
        found = _read(path, Lineage)
    except (ValueError, msgspec.MsgspecError) as error:
        return Lineage(), _set_aside(path, str(error))
    if found is None:
        return Lineage(), ""
    if len(found.hashes) != (stages if found.version else 0):
        return Lineage(), _set_aside(path, "it lacks the state of some stage")
    if found.version > steps:
        return Lineage(), _set_aside(path, f"the run has {steps} steps, and it begins later")
    if found.number > HIGHEST_NUMBER:
        return Lineage(), _set_aside(path, f"no run was rolled back {found.number} times")
    return found, ""


def save_lineage(folder: Path, lineage: Lineage) -> None:
    """Save a lineage; raises ``OSError`` if the disk refuses (the old file stays)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / FILE_NAME, msgspec.msgpack.encode(lineage))


def load_evidence(folder: Path) -> tuple[Seen, str]:
    """Return the evidence of the run (empty without a file), and a warning if it was set aside."""
    path = folder / EVIDENCE_NAME
    try:
        return _read(path, Seen) or Seen(), ""
    except (ValueError, msgspec.MsgspecError) as error:
        return Seen(), _set_aside(path, str(error))


def save_evidence(folder: Path, seen: Seen) -> None:
    """Save the evidence; raises ``OSError`` if the disk refuses (the old file stays)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / EVIDENCE_NAME, msgspec.msgpack.encode(seen))


def load_beginnings(folder: Path) -> tuple[Beginnings, str]:
    """Return whom we met at the beginnings of lineages (nobody without a file), and a warning
    if the file was set aside."""
    path = folder / BEGINNINGS_NAME
    try:
        return Beginnings(_read(path, _Met) or ()), ""
    except (ValueError, msgspec.MsgspecError) as error:
        return Beginnings(), _set_aside(path, str(error))


def save_beginnings(folder: Path, beginnings: Beginnings) -> None:
    """Save whom we have met; raises ``OSError`` if the disk refuses (the old file stays)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / BEGINNINGS_NAME, msgspec.msgpack.encode(beginnings.kept))


def _read(path: Path, kind: type[_T]) -> _T | None:
    """Return the content of a file, None if it cannot be read.

    Raises:
        ValueError: it is too large (also ``MsgspecError``: it is damaged).
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError:
        return None
    if len(raw) > MAX_FILE_BYTES:
        raise ValueError("it is too large")
    return packed_decoder(kind).decode(raw)


def _set_aside(path: Path, problem: str) -> str:
    """Rename a file and return the warning."""
    with contextlib.suppress(OSError):
        os.replace(path, path.with_name(path.name + SET_ASIDE))
    return f"{path} cannot be used and was set aside: {problem}"
