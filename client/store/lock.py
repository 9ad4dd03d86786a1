"""The lock of an identity: one process uses it at a time, and the others see which.

The kernel releases it with the process, so a crash never leaves a stale lock.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from client.errors import ExitCode, UserError
from client.store.paths import HOME_VARIABLE, Entry

LOCK_FILE: Final = Entry.LOCK
ANOTHER: Final = "another"
"""A process whose number the disk had no room for."""
LOOK_S: Final = 0.05


@contextmanager
def identity_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of an identity while this process uses it.

    Whoever only looks who holds it (``lock_holder``) has it for a moment, so a second try decides.

    Raises:
        UserError: another process holds it, which is named; or the disk has no locks.
    """
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for last in (False, True):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if last:
                    raise already_runs(_named(descriptor)) from error
                time.sleep(LOOK_S)
            except OSError as error:
                words = f"the disk of {folder} has no locks: {error.strerror}"
                next_step = f"set {HOME_VARIABLE} to a folder on another disk"
                raise UserError(words, next_step, ExitCode.CONFIG) from error
        with suppress(OSError):  # a full disk: the lock counts, the number is for people
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def lock_holder(folder: Path) -> str:
    """Return the process that holds the lock of an identity, or ``ANOTHER``; empty: none does."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""  # no process has ever used it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released when it is closed
    except BlockingIOError:
        return _named(descriptor)
    except OSError:
        return ""  # the disk has no locks
    finally:
        os.close(descriptor)
    return ""


def _named(descriptor: int) -> str:
    """Return the process that a lock file names."""
    return os.pread(descriptor, 32, 0).decode(errors="replace").strip() or ANOTHER


def already_runs(process: str) -> UserError:
    """Return the error for a second process with the same identity."""
    return UserError(
        f"process {process} already runs with this identity",
        "show it with: volunteer attach; for a second volunteer on this machine set "
        f"{HOME_VARIABLE} to another folder",
        ExitCode.TEMPORARY,
    )
