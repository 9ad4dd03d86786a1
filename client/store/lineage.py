"""Which lineage of a swarm this volunteer followed when it was last here, and what it had seen of
the run: two small files.

One that is damaged or that cannot be used, whoever brought it about, is set aside under another
name: then the swarm's others say where the run stands.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from client.store.atomic import write_atomic
from protocol.restore.evidence import Kept
from protocol.restore.stored import HIGHEST_NUMBER, Lineage

FILE_NAME: Final = "lineage.bin"
EVIDENCE_NAME: Final = "evidence.bin"
SET_ASIDE: Final = ".unusable"
MAX_FILE_BYTES: Final = 1024 * 1024

_T = TypeVar("_T")


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """What is in the evidence's file."""

    kept: Kept = Kept()
    wall: float = 0.0
    """Unix seconds of the writing."""


def load_lineage(folder: Path, stages: int, steps: int) -> tuple[Lineage, str]:
    """Return what was kept in a swarm's checkpoint folder (the first lineage if nothing was), and
    in words what was set aside.

    Args:
        stages: of the run.
        steps: of the run: no lineage begins later.
    """
    path = folder / FILE_NAME
    try:
        found = _read(path, Lineage)
    except (ValueError, msgspec.MsgspecError) as error:
        return Lineage(), _set_aside(path, str(error))
    if found is None:
        return Lineage(), ""
    if len(found.hashes) != (stages if found.version else 0):
        return Lineage(), _set_aside(path, "it has not a state for every stage")
    if found.version > steps:
        return Lineage(), _set_aside(path, f"the run has {steps} steps, and it begins later")
    if found.number > HIGHEST_NUMBER:
        return Lineage(), _set_aside(path, f"no run was rolled back {found.number} times")
    return found, ""


def save_lineage(folder: Path, lineage: Lineage) -> None:
    """Keep a lineage; raises ``OSError`` if the disk does not take it (the old file stays)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / FILE_NAME, msgspec.msgpack.encode(lineage))


def load_evidence(folder: Path) -> tuple[Seen, str]:
    """Return what was seen of the run (nothing if nothing was kept), and in words what was set
    aside."""
    path = folder / EVIDENCE_NAME
    try:
        return _read(path, Seen) or Seen(), ""
    except (ValueError, msgspec.MsgspecError) as error:
        return Seen(), _set_aside(path, str(error))


def save_evidence(folder: Path, seen: Seen) -> None:
    """Keep what was seen; raises ``OSError`` if the disk does not take it (the old file stays)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / EVIDENCE_NAME, msgspec.msgpack.encode(seen))


def _read(path: Path, kind: type[_T]) -> _T | None:
    """Return what a file holds, None if there is none that can be read.

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
    return msgspec.msgpack.decode(raw, type=kind)


def _set_aside(path: Path, problem: str) -> str:
    """Give a file another name, and say so."""
    with contextlib.suppress(OSError):
        os.replace(path, path.with_name(path.name + SET_ASIDE))
    return f"{path} cannot be used and was set aside: {problem}"
