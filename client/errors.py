"""Errors and exit codes that reach the user."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeVar

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


def first_of(group: BaseExceptionGroup[Any], kind: type[Found]) -> Found | None:
    """Return the first exception of a kind anywhere in a group."""
    for error in group.exceptions:
        if isinstance(error, kind):
            return error
        if isinstance(error, BaseExceptionGroup):
            found = first_of(error, kind)
            if found is not None:
                return found
    return None


class ConfigError(UserError):
    """A setting is unknown or has a value that cannot be used."""

    def __init__(self, message: str, next_step: str = "run volunteer config --help") -> None:
        super().__init__(message, next_step, ExitCode.CONFIG)
