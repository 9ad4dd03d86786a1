"""The folder of a swarm's checkpoints: ``stage-<s>-v<version>.safetensors``.

This module does not know the content of a checkpoint. A file under its final name is complete,
because writers rename it last. A damaged or unwanted file keeps its bytes under a longer name,
which this module ignores.
"""

import os
import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Final

from client.store.atomic import flush_folder, is_temporary

DAMAGED: Final = ".damaged"
SET_ASIDE: Final = ".set-aside"
_NAME: Final = re.compile(r"stage-(0|[1-9][0-9]{0,3})-v(0|[1-9][0-9]{0,14})\.safetensors")


@dataclass(frozen=True, slots=True, order=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    stage: int
    version: int
    path: Path


class CheckpointFolder:
    """Finds checkpoints and removes old ones; raises ``OSError`` where the disk does.

    Args:
        folder: the folder; it need not exist.
        keep: number of newest checkpoints kept per stage.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError("at least one checkpoint per stage is kept")
        self.folder = folder
        self._keep = keep

    def path(self, stage: int, version: int) -> Path:
        """Return the path of a checkpoint."""
        return self.folder / f"stage-{stage}-v{version}.safetensors"

    def entries(self) -> list[Checkpoint]:
        """Return all complete checkpoints by stage and version; other files are ignored."""
        return sorted(filter(None, map(_parse, self._files())))

    def aside(self) -> list[Path]:
        """Return the files that hold valid checkpoints out of use, by name."""
        return sorted(path for path in self._files() if SET_ASIDE in path.name)

    def _files(self) -> list[Path]:
        return list(self.folder.iterdir()) if self.folder.is_dir() else []

    def retain(
        self,
        protect: Collection[tuple[int, int]] = (),
        *,
        stage: int | None = None,
        keep: int | None = None,
    ) -> None:
        """Remove all but the newest checkpoints of every stage.

        Args:
            protect: (stage, version) pairs that stay whatever their age, such as the newest
                version that every stage is known to have.
            stage: only this stage; None: all.
            keep: number of newest ones kept per stage; None: the folder's own number.
        """
        entries = self.entries()
        stages = {checkpoint.stage for checkpoint in entries} if stage is None else {stage}
        for each in stages:
            of_stage = [checkpoint for checkpoint in entries if checkpoint.stage == each]
            old = of_stage[: -(keep or self._keep)]
            for checkpoint in old:
                if (each, checkpoint.version) not in protect:
                    checkpoint.path.unlink(missing_ok=True)

    def problem(self, size_bytes: int) -> str:
        """Say why so many bytes cannot be written here now; empty: as far as can be known, they
        can."""
        try:
            place = next(one for one in (self.folder, *self.folder.parents) if one.exists())
            if not os.access(place, os.W_OK):
                return f"{place} is not writable"
            free = shutil.disk_usage(place).free
        except OSError:
            return ""
        if free >= size_bytes:
            return ""
        return f"{size_bytes / 1e6:.1f} MB are needed and {free / 1e6:.1f} MB free in {place}"

    def adopt(self, path: Path, stage: int, version: int) -> Path:
        """Move a verified file of the same disk to its place as a checkpoint; return that path."""
        with path.open("rb") as file:
            os.fsync(file.fileno())
        target = self.path(stage, version)
        path.replace(target)
        flush_folder(self.folder)
        return target

    def condemn(self, checkpoint: Checkpoint) -> Path:
        """Rename a damaged checkpoint out of use; return its new path, or the old one if the disk
        refuses."""
        with suppress(OSError):
            return self._rename(checkpoint, DAMAGED)
        return checkpoint.path

    def set_aside(self, checkpoint: Checkpoint) -> Path:
        """Rename a valid checkpoint out of use; return its new path."""
        return self._rename(checkpoint, SET_ASIDE)

    def sweep(self) -> None:
        """Remove files left by interrupted writes; call it only while no process writes here."""
        for path in filter(is_temporary, self._files()):
            path.unlink(missing_ok=True)

    def _rename(self, checkpoint: Checkpoint, suffix: str) -> Path:
        """Rename to a free name, so that files set aside earlier stay."""
        path = checkpoint.path
        names = (f"{path.name}{suffix}{more}" for more in chain([""], map("-{}".format, count(2))))
        target = next(free for name in names if not (free := path.with_name(name)).exists())
        path.replace(target)
        return target


def _parse(path: Path) -> Checkpoint | None:
    match = _NAME.fullmatch(path.name)
    if match is None or not path.is_file():
        return None
    return Checkpoint(int(match[1]), int(match[2]), path)
