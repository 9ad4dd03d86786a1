"""A volunteer's files on disk, by kind, and which of them may be removed.

Files that can be fetched again (others' training texts, working copies, files set aside) may be
removed without asking the swarm. Checkpoints and the texts of swarms founded here are different:
their last copy may be here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client.store.atomic import is_temporary
from client.store.checkpoints import DAMAGED, SET_ASIDE
from client.store.paths import Entry
from client.store.texts import is_founders

TEXTS: Final = Entry.TEXTS
SNAPSHOTS: Final = Entry.SNAPSHOTS
CHECKPOINTS: Final = Entry.CHECKPOINTS
LOGS: Final = Entry.LOGS


@dataclass(frozen=True, slots=True)
class Kept:
    """Files of one kind."""

    kind: str
    words: str
    files: tuple[Path, ...]
    prunable: bool
    """Whether ``cache prune`` removes it unasked."""

    @property
    def size_bytes(self) -> int:
        """Size on disk, bytes."""
        return sum(_size(path) for path in self.files)


def kept(data: Path) -> list[Kept]:
    """Return the files of a data folder by kind; empty kinds are left out."""
    checkpoints = list(_files(data / CHECKPOINTS))
    aside = [path for path in checkpoints if _is_aside(path)]
    left = [path for path in _files(data) if is_temporary(path)]
    texts = _all(data / TEXTS)
    own = tuple(filter(is_founders, texts))
    copied = tuple(path for path in texts if path not in own)
    whole = [path for path in checkpoints if path not in {*aside, *left}]
    found = [
        Kept(TEXTS, "training texts; downloaded again when needed", copied, True),
        Kept("own-texts", "of swarms founded here; members copy them from you", own, False),
        Kept(SNAPSHOTS, "working copies of stages", _all(data / SNAPSHOTS), True),
        Kept("set-aside", "checkpoints that are damaged or were left", tuple(aside), True),
        Kept("leftovers", "of interrupted writes", tuple(left), True),
        Kept(CHECKPOINTS, "results of training; the swarm may need them", tuple(whole), False),
        Kept(LOGS, "log files of the volunteer", _all(data / LOGS), False),
    ]
    return [kind for kind in found if kind.files]


def remove(kinds: Iterable[Kept]) -> int:
    """Remove all files of these kinds; return the bytes freed. Raises ``OSError``."""
    freed = 0
    for kind in kinds:
        for path in kind.files:
            freed += _size(path)
            path.unlink(missing_ok=True)
    return freed


def _is_aside(path: Path) -> bool:
    return DAMAGED in path.name or SET_ASIDE in path.name


def _all(folder: Path) -> tuple[Path, ...]:
    return tuple(path for path in _files(folder) if not is_temporary(path))


def _files(folder: Path) -> Iterator[Path]:
    """Yield the plain files below a folder; links are not followed."""
    if folder.is_dir() and not folder.is_symlink():
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
