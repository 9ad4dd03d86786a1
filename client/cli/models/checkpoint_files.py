"""Lists and verifies the checkpoints on this machine for commands.

Both change nothing, so they may run beside a volunteer.
"""

from __future__ import annotations

import time
from pathlib import Path

from msgspec import Struct, field

from client.compute.checkpoint import CheckpointInfo, read_info, verify
from client.compute.errors import CheckpointError, CheckpointUnreadable
from client.store.checkpoints import CheckpointFolder
from client.train.transfer.inventory import checked


class FileView(Struct, frozen=True, kw_only=True):
    """One checkpoint file."""

    path: str
    stage: int
    version: int
    size_bytes: int
    age_s: int
    """Seconds since it was written."""
    hash: str = ""
    """Hash of the version, hex; empty for a damaged file."""
    problem: str = ""
    """The reason why it cannot be used; empty: it can."""
    damaged: bool = False
    """Whether that is so for good: otherwise the disk or the key fails now."""


class SwarmView(Struct, frozen=True, kw_only=True):
    """The checkpoints of one swarm."""

    swarm: str
    swarm_name: str
    """Its name; empty for a swarm that is not remembered here."""
    folder: str
    stages: int
    """Stages of the model; 0 where no file names them."""
    complete: list[int]
    """Versions with a checkpoint of every stage."""
    files: list[FileView] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    """Paths of the files that were set aside and are not used: of an earlier line of the run."""


class Listing(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer checkpoint ls --json`` and ``verify --json``."""

    swarms: list[SwarmView]


def look(folder: Path, swarm: str, name: str, *, whole: bool) -> SwarmView:
    """Describe a folder; ``whole``: read all of every file, not only its header."""
    files, stages, sound = [], 0, dict[int, set[int]]()
    for entry in CheckpointFolder(folder).entries():
        view, info = _look_at(entry.path, entry.stage, entry.version, swarm, whole=whole)
        files.append(view)
        if info is not None:
            stages = info.stages
            sound.setdefault(info.version, set()).add(info.stage)
    complete = sorted(v for v, held in sound.items() if held == set(range(stages)))
    return SwarmView(
        swarm=swarm,
        swarm_name=name,
        folder=str(folder),
        stages=stages,
        complete=complete,
        files=files,
        aside=[str(path) for path in CheckpointFolder(folder).aside()],
    )


def _look_at(
    path: Path, stage: int, version: int, swarm: str, *, whole: bool
) -> tuple[FileView, CheckpointInfo | None]:
    size, age = 0, 0
    try:
        status = path.stat()
        size, age = status.st_size, max(0, int(time.time() - status.st_mtime))
        info = verify(path) if whole else read_info(path)
        checked(info, swarm, info.stages)
        if (info.stage, info.version) != (stage, version):
            raise CheckpointError(f"it is stage {info.stage} at version {info.version}")
    except (CheckpointError, OSError) as error:
        problem = str(error)
        view = FileView(
            path=str(path),
            stage=stage,
            version=version,
            size_bytes=size,
            age_s=age,
            problem=problem,
            damaged=not isinstance(error, CheckpointUnreadable | OSError),
        )
        return view, None
    view = FileView(
        path=str(path),
        stage=stage,
        version=version,
        size_bytes=size,
        age_s=age,
        hash=info.hash,
    )
    return view, info
