"""Lets the volunteers of one machine see each other: one notice each in a shared folder.

A notice is a small file that its volunteer keeps locked, so it is void as soon as that process
ends. Every user can read it; it contains only a process id, and the cores and memory in use. Other
users' notices are hardly trusted: the kernel tells the owner of the file, its process must exist
and belong to the same user, and malformed notices are ignored. Volunteers that do not share this
folder (containers) do not see each other.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import msgspec
import psutil
from msgspec import Meta, Struct

PREFIX: Final = "volunteer-notice-"
SIZE_BYTES: Final = 1024
"""Length of every notice; a fixed length can be rewritten in one write."""
MAX_FILES: Final = 10_000
"""Entries examined in the folder, which other programs also use."""
MAX_NOTICES: Final = 256
SHARED_MEMORY: Final = Path("/dev/shm")


class Notice(Struct, frozen=True):
    """A volunteer's notice to the others on its machine."""

    pid: Annotated[int, Meta(ge=1, le=2**31)]
    cpus: Annotated[str, Meta(max_length=512, pattern="^[0-9a-f]+$")]
    """Processors it may use, as a hexadecimal mask."""
    group: Annotated[str, Meta(max_length=64)] = ""
    """The control group that limits its processor time, if any; not its path."""
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Threads chosen by its owner; 0: its share."""
    computing: bool = False
    """Whether it holds a stage."""
    memory_bytes: Annotated[int, Meta(ge=0, lt=2**60)] = 0
    """The machine's memory that its stages need."""

    @property
    def mask(self) -> int:
        """``cpus`` as a number."""
        return int(self.cpus, 16)


@dataclass(frozen=True, slots=True)
class Seen:
    """Another volunteer of this machine."""

    user: int
    notice: Notice


def shared_folder() -> Path:
    """Return a folder in which every user may create files and remove only their own."""
    return SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())


class Board:
    """Our notice, after ``post``, and those of the others."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or shared_folder()
        self._name = f"{PREFIX}{secrets.token_hex(8)}"
        self._descriptor: int | None = None

    def post(self, notice: Notice) -> None:
        """Create our notice, or replace it.

        Raises:
            OSError: the folder cannot be written, so the others do not see us.
        """
        content = msgspec.json.encode(notice).ljust(SIZE_BYTES)
        if self._descriptor is not None:
            os.pwrite(self._descriptor, content, 0)
            return
        draft = self._folder / f".{self._name}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(draft, flags, 0o644)
        try:
            os.fchmod(descriptor, 0o644)  # despite the umask, because the others must read it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(descriptor, content, 0)
            draft.rename(self._folder / self._name)  # it appears locked and complete
        except BaseException:
            os.close(descriptor)
            draft.unlink(missing_ok=True)
            raise
        self._descriptor = descriptor

    def withdraw(self) -> None:
        """Remove our notice; does nothing if there is none."""
        if self._descriptor is not None:
            with suppress(OSError):
                (self._folder / self._name).unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def others(self) -> list[Seen]:
        """Return the other running volunteers, each process once; remove stale notices of ours.

        Never raises: an unreadable folder counts as empty.
        """
        found: dict[int, Seen] = {}
        for path in islice(self._paths(), MAX_NOTICES):
            seen = _look_at(path)
            if seen is not None and seen.notice.pid != os.getpid():
                found.setdefault(seen.notice.pid, seen)
        return list(found.values())

    def _paths(self) -> Iterator[Path]:
        try:
            with os.scandir(self._folder) as entries:
                for entry in islice(entries, MAX_FILES):
                    if entry.name.startswith(PREFIX) and entry.name != self._name:
                        yield Path(entry.path)
        except OSError:
            return


def _look_at(path: Path) -> Seen | None:
    """Return the notice in a file with its user; None if it is stale or invalid."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != SIZE_BYTES:
            return None
        if not _is_locked(descriptor):
            if status.st_uid == os.geteuid():
                path.unlink(missing_ok=True)  # its process is gone
            return None
        notice = msgspec.json.decode(os.pread(descriptor, SIZE_BYTES, 0), type=Notice)
        return Seen(status.st_uid, notice) if _runs(notice.pid, status.st_uid) else None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released when it is closed
    except BlockingIOError:
        return True
    return False


def _runs(pid: int, user: int) -> bool:
    """Whether the process exists and belongs to the user; anybody can lock a stale file."""
    try:
        return bool(psutil.Process(pid).uids().effective == user)
    except psutil.Error:
        return False
