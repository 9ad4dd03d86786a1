"""The folder of a swarm's checkpoints: ``stage-<s>-v<version>.safetensors``.

Names only: what is in a checkpoint is the business of those who write and read tensors. A file
under its final name is complete, because writers rename it there last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client.store.atomic import is_temporary

_NAME: Final = re.compile(r"stage-(0|[1-9][0-9]{0,3})-v(0|[1-9][0-9]{0,14})\.safetensors")


@dataclass(frozen=True, slots=True, order=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    stage: int
    version: int
    path: Path


class CheckpointFolder:
    """Finds checkpoints and removes old ones; raises ``OSError`` where the disk does."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError("at least one checkpoint per stage is kept")
        self.folder = folder
        self._keep = keep

    def path(self, stage: int, version: int) -> Path:
        """Return where a checkpoint belongs."""
        return self.folder / f"stage-{stage}-v{version}.safetensors"

    def entries(self) -> list[Checkpoint]:
        """Return all complete checkpoints by stage and version; other files are ignored."""
        if not self.folder.is_dir():
            return []
        found = (_parse(path) for path in self.folder.iterdir())
        return sorted(checkpoint for checkpoint in found if checkpoint is not None)

    def newest(self, stage: int) -> Checkpoint | None:
        """Return the newest checkpoint of a stage."""
        return max((c for c in self.entries() if c.stage == stage), default=None)

    def newest_complete(self, stages: int) -> int | None:
        """Return the newest version of which every stage 0..stages-1 has a checkpoint here."""
        versions: list[set[int]] = [set() for _ in range(stages)]
        for checkpoint in self.entries():
            if checkpoint.stage < stages:
                versions[checkpoint.stage].add(checkpoint.version)
        return max(set.intersection(*versions), default=None) if versions else None

    def retain(self) -> list[Checkpoint]:
        """Remove all but the newest ones of every stage; return what was removed."""
        entries = self.entries()
        removed = []
        for stage in {checkpoint.stage for checkpoint in entries}:
            of_stage = [checkpoint for checkpoint in entries if checkpoint.stage == stage]
            removed += of_stage[: -self._keep]
        for checkpoint in removed:
            checkpoint.path.unlink(missing_ok=True)
        return removed

    def sweep(self) -> int:
        """Remove what interrupted writes left behind; only while nobody writes here."""
        if not self.folder.is_dir():
            return 0
        leftovers = [path for path in self.folder.iterdir() if is_temporary(path)]
        for path in leftovers:
            path.unlink(missing_ok=True)
        return len(leftovers)


def _parse(path: Path) -> Checkpoint | None:
    match = _NAME.fullmatch(path.name)
    if match is None or not path.is_file():
        return None
    return Checkpoint(int(match[1]), int(match[2]), path)
