"""Lists, verifies and restores the checkpoints on this machine for commands.

Listing and verifying change nothing, so they may run beside a volunteer.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct, field

from client.compute.checkpoint import CheckpointInfo, read_info, verify
from client.compute.errors import CheckpointError, CheckpointUnreadable
from client.errors import ExitCode, UserError
from client.store.atomic import replacing
from client.store.checkpoints import CheckpointFolder
from client.train.transfer.inventory import checked
from protocol.invite import SwarmFile


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


class Restored(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer checkpoint restore --json``."""

    swarm: str
    folder: str
    copied: list[FileView]
    set_aside: list[str]
    """New names of the files set aside."""
    complete: list[int]


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


def verified_sources(places: Iterable[Path], swarm: SwarmFile) -> list[tuple[Path, CheckpointInfo]]:
    """Return the checkpoints of this swarm in files and folders, all of them read completely.

    Raises:
        UserError: one is damaged (exit 1), of another swarm (exit 77), or not there (exit 2).
    """
    found = []
    for place in places:
        for path in _files_of(place):
            try:
                info = verify(path)
            except CheckpointError as error:
                raise UserError(
                    f"{path}: {error}", "nothing was changed; use another copy"
                ) from error
            try:
                checked(info, swarm.swarm, swarm.manifest.stage_count)
            except CheckpointError as error:
                raise UserError(
                    f"{path}: {error}",
                    "nothing was changed; choose the right swarm with --swarm",
                    ExitCode.REFUSED,
                ) from error
            found.append((path, info))
    return found


def _files_of(place: Path) -> list[Path]:
    if not place.is_dir():
        if place.is_file():
            return [place]
        raise UserError(f"there is no {place}", "name files or folders", ExitCode.USAGE)
    paths = [entry.path for entry in CheckpointFolder(place).entries()]
    if not paths:
        raise UserError(
            f"no checkpoint lies in {place}",
            "they are called stage-<stage>-v<version>.safetensors",
            ExitCode.USAGE,
        )
    return paths


def restore(
    folder: CheckpointFolder,
    sources: Sequence[tuple[Path, CheckpointInfo]],
    swarm: SwarmFile,
    version: int | None,
) -> Restored:
    """Copy the verified ``sources`` into a swarm's folder and set aside those newer than
    ``version``.

    Raises:
        UserError: there is no checkpoint of that version, or the disk is full; the earlier files
            stay.
    """
    entries = folder.entries()
    versions = {entry.version for entry in entries} | {info.version for _, info in sources}
    if version is not None and version not in versions:
        there = ", ".join(map(str, sorted(versions))) or "none"
        raise UserError(
            f"there is no checkpoint of version {version} (there is {there})",
            "nothing was changed; choose another --version, or name files of that one",
            ExitCode.USAGE,
        )
    aside: list[str] = []
    try:
        folder.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, info in sources:
            aside += _copy(folder, path, info)
        newer = [e for e in folder.entries() if version is not None and e.version > version]
        aside += [str(folder.set_aside(entry)) for entry in newer]
    except OSError as error:
        raise UserError(
            f"cannot write to {folder.folder}: {error.strerror or error}",
            "free space or make it writable, and run it again",
        ) from error
    after = look(folder.folder, swarm.swarm, swarm.manifest.name, whole=False)
    places = {str(folder.path(info.stage, info.version)) for _, info in sources}
    return Restored(
        swarm=swarm.swarm,
        folder=str(folder.folder),
        copied=[file for file in after.files if file.path in places],
        set_aside=aside,
        complete=after.complete,
    )


def _copy(folder: CheckpointFolder, path: Path, info: CheckpointInfo) -> list[str]:
    """Copy one file; return the new name of a different one in its place."""
    target, aside = folder.path(info.stage, info.version), []
    if target.exists() and path.resolve() == target.resolve():
        return []
    for entry in folder.entries():
        if entry.path == target:
            aside.append(str(folder.set_aside(entry)))
    with path.open("rb") as source, replacing(target) as file:
        shutil.copyfileobj(source, file)
    return aside
