"""Show what is kept on disk, and free space.

Group: this machine

$ volunteer cache  # by kind
$ volunteer cache --prune  # asks before it removes what can be had again

Files that can be fetched again (others' training data, working copies, files set aside) may be
removed without asking the swarm. Checkpoints and the texts of swarms founded here are different:
their last copy may be here, and volunteer forget removes those of a swarm.
"""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from client.cli.reach.home import Home, find_home
from client.cli.terminal.answer import Answer, answered
from client.cli.terminal.ask import confirm
from client.errors import UserError
from client.quantities import plural
from client.store.atomic import is_temporary
from client.store.checkpoints import DAMAGED, SET_ASIDE
from client.store.lock import identity_lock
from client.store.paths import Entry, make_private
from client.store.texts import is_founders
from client.views.text import aligned
from client.views.words import size as human_bytes


class Kept(Struct, frozen=True):
    """Files of one kind."""

    kind: str
    words: str
    files: int
    size_bytes: int
    prunable: bool
    """Whether ``cache --prune`` removes it."""


@answered
def cache(*, prune: bool = False, yes: bool = False) -> Answer:
    """Show what the volunteer keeps on disk: training data, checkpoints, leftovers, logs.

    Args:
        prune: Remove what can be had again; the volunteer must not be running.
        yes: Do not ask.
    """
    home = find_home()
    folder = home.folders.data
    found = kept(folder)
    if prune:
        return _pruned(home, [(kind, files) for kind, files in found if kind.prunable], yes=yes)
    kinds = [kind for kind, _ in found]
    rows = [
        (k.kind, str(k.files), human_bytes(k.size_bytes), "yes" if k.prunable else "no", k.words)
        for k in kinds
    ]
    lines = aligned(["kind", "files", "size", "pruned", "what it is"], rows)
    return Answer({"folder": str(folder), "kinds": kinds}, lines)


def _pruned(home: Home, chosen: list[tuple[Kept, tuple[Path, ...]]], *, yes: bool) -> Answer:
    kinds, size = [kind for kind, _ in chosen], 0
    if chosen:
        words = ", ".join(f"{kind.kind} ({human_bytes(kind.size_bytes)})" for kind in kinds)
        confirm(f"Remove {words}?", yes=yes)
        size = _remove(home, [path for _, files in chosen for path in files])
    document = {"folder": str(home.folders.data), "removed": kinds, "freed_bytes": size}
    lines = [f"{kind.kind}: {plural(kind.files, 'file')} removed" for kind in kinds]
    freed = f"{human_bytes(size)} freed" if kinds else "there is nothing to remove"
    return Answer(document, lines, [freed])


def kept(data: Path) -> list[tuple[Kept, tuple[Path, ...]]]:
    """Return the files of a data folder by kind; empty kinds are left out."""
    checkpoints = list(_files(data / Entry.CHECKPOINTS))
    aside = [path for path in checkpoints if DAMAGED in path.name or SET_ASIDE in path.name]
    left = [path for path in _files(data) if is_temporary(path)]
    texts = _all(data / Entry.TEXTS)
    own = tuple(filter(is_founders, texts))
    copied = tuple(path for path in texts if path not in own)
    whole = [path for path in checkpoints if path not in {*aside, *left}]
    snapshots, logs = _all(data / Entry.SNAPSHOTS), _all(data / Entry.LOGS)
    gathered = _all(data / Entry.GATHERED)
    found = (
        (Entry.TEXTS, "training data; fetched again when needed", copied, True),
        ("own-texts", "of swarms founded here; members copy them from you", own, False),
        (Entry.SNAPSHOTS, "working copies of stages", snapshots, True),
        (Entry.GATHERED, "models of an interrupted sample or export", gathered, True),
        ("set-aside", "checkpoints that are damaged or were left", tuple(aside), True),
        ("leftovers", "of interrupted writes", tuple(left), True),
        (Entry.CHECKPOINTS, "results of training; the swarm may need them", tuple(whole), False),
        (Entry.LOGS, "log files of the volunteer", logs, False),
    )
    return [
        (Kept(kind, words, len(files), sum(map(_size, files)), prunable), files)
        for kind, words, files, prunable in found
        if files
    ]


def _remove(home: Home, files: list[Path]) -> int:
    """Remove files; return the bytes freed."""
    freed = 0
    try:
        with identity_lock(make_private(home.folders.data)):
            for path in files:
                freed += _size(path)
                path.unlink(missing_ok=True)
    except OSError as error:
        problem = f"cannot remove {error.filename}: {error.strerror}"
        raise UserError(problem, "fix the permissions") from error
    return freed


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
