"""Errors and exit codes that reach the user."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Final, TypeVar

Found = TypeVar("Found", bound=BaseException)


class ExitCode(IntEnum):
    """Exit codes of ``volunteer``; stable, because scripts rely on them."""

    OK = 0
    RUNTIME = 1
    USAGE = 2
    NOT_RUNNING = 3
    UNREACHABLE = 69
    """No member of the swarm answered."""
    TEMPORARY = 75
    """Trying again later may help."""
    REFUSED = 77
    """A signature, a permission or the swarm refused it."""
    CONFIG = 78
    INTERRUPTED = 130

    @classmethod
    def _missing_(cls, value: object) -> ExitCode:
        """Return the code for a process that ended with none of ours, or by a signal."""
        return cls.RUNTIME


class UserError(Exception):
    """A problem that the user can solve: one sentence on the fault, one on what to do next.

    Args:
        message: one sentence on the fault.
        next_step: one sentence on what to do next; may be empty.
        exit_code: of the process.
    """

    def __init__(
        self, message: str, next_step: str = "", exit_code: ExitCode = ExitCode.RUNTIME
    ) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.exit_code = exit_code
        self.told = False
        """The user has read it already, as a line of the log."""


@contextmanager
def system_errors(
    problem: str, next_step: str = "", exit_code: ExitCode = ExitCode.RUNTIME
) -> Iterator[None]:
    """Turn an error of the disk or the network into one for the user, with the system's reason
    behind ``problem``."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{problem}: {error.strerror or error}", next_step, exit_code) from error


def first_of(group: BaseExceptionGroup[Any], kind: type[Found]) -> Found | None:
    """Return the first exception of a kind anywhere in a group."""
    found: BaseException | None = group.subgroup(kind)
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found if isinstance(found, kind) else None


_ACCESS: Final = "make it yours (chown, chmod), or set VOLUNTEER_HOME to a folder of its own"
_FREE: Final = "free space where the output or the files go: volunteer cache --prune"
OF_THE_MACHINE: Final = {
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.EROFS: "mount it for writing, or set VOLUNTEER_HOME to another folder",
    errno.ENOTDIR: "a file is in the way of a folder: move it",
    errno.ENOSPC: _FREE,
    errno.EDQUOT: _FREE,
    errno.EMFILE: "allow more open files: ulimit -n 4096",
    errno.ENFILE: "the machine has too many open files: end other programs",
    errno.EIO: "check the disk",
    errno.ELOOP: "mend the symbolic links",
    errno.ENAMETOOLONG: "use a shorter path",
}
"""Faults of the machine and not of this program wherever they come up, with what to do."""


def solvable(error: BaseException) -> UserError | None:
    """Return what the user can do about an error, or one in a group; None: it is our fault."""
    group = BaseExceptionGroup("", [error])
    known, of_system = first_of(group, UserError), first_of(group, OSError)
    if known is not None or of_system is None:
        return known
    if (next_step := OF_THE_MACHINE.get(of_system.errno or 0)) is None:
        return None
    what = f"cannot use {of_system.filename}: " if of_system.filename else ""
    return UserError(f"{what}{of_system.strerror}", next_step)


class UsageError(UserError):
    """A command line that cannot be meant."""

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message, next_step, ExitCode.USAGE)


class ConfigError(UserError):
    """A setting is unknown or has a value that cannot be used."""

    def __init__(self, message: str, next_step: str = "run volunteer config --help") -> None:
        super().__init__(message, next_step, ExitCode.CONFIG)
