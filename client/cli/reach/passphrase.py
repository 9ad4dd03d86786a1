"""Opens the encrypted files of this volunteer with its owner's passphrase.

The passphrase comes from the file that ``VOLUNTEER_PASSPHRASE_FILE`` names, which may be a
descriptor (``/dev/fd/3``), or is asked for in the terminal. It is never an argument: everybody on
the machine can see those.
"""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import Final

from client import at_rest
from client.cli.terminal.output import say
from client.errors import ExitCode, UserError
from client.store.rest_files import kept_files
from client.store.rest_key import FILE_NAME, WrongPassphrase, has_key, open_key

VARIABLE: Final = "VOLUNTEER_PASSPHRASE_FILE"
NEW_VARIABLE: Final = "VOLUNTEER_NEW_PASSPHRASE_FILE"
"""In its place where a passphrase is changed."""
MAX_BYTES: Final = 4096
TRIES: Final = 3


def unlock(folder: Path) -> None:
    """Have this process read and write encrypted files, if those of a home are encrypted.

    Args:
        folder: the folder of the identity.

    Raises:
        UserError: the passphrase is wrong, there is nobody to ask, or the key is lost.
    """
    refuse_lost_key(folder)
    if has_key(folder):
        at_rest.use(opened(folder))


def refuse_lost_key(folder: Path) -> None:
    """Refuse to go on in plain where the owner has encrypted.

    Raises:
        UserError: there are encrypted files, and no key of them.
    """
    try:
        lost = not has_key(folder) and kept_files(folder, encrypted=True)
    except OSError as error:
        problem = f"cannot read {error.filename or folder}: {error.strerror}"
        raise UserError(problem, "make it readable", ExitCode.CONFIG) from error
    if lost:
        raise UserError(
            f"{len(lost)} files are encrypted, and the key {folder / FILE_NAME} is missing",
            f"restore it from a backup, or move the files away, such as {lost[0]}",
            ExitCode.CONFIG,
        )


def opened(folder: Path) -> bytes:
    """Return the key of a home; raises as ``unlock``."""
    if VARIABLE in os.environ:
        return open_key(folder, _from_file(VARIABLE))
    for _ in range(TRIES - 1):
        try:
            return open_key(folder, _asked("passphrase of this volunteer's files: "))
        except WrongPassphrase as error:
            say(error.message)
    return open_key(folder, _asked("passphrase of this volunteer's files: "))


def chosen(variable: str) -> bytes:
    """Return a new passphrase: from the file that ``variable`` names, or asked for twice.

    Raises:
        UserError: it is empty, or the two differ, or there is nobody to ask.
    """
    if variable in os.environ:
        return _from_file(variable)
    first = _asked("new passphrase (without it the files are lost): ")
    if not first:
        raise UserError("the passphrase is empty", "nothing was changed", ExitCode.USAGE)
    if first != _asked("again: "):
        raise UserError("the two differ", "nothing was changed; try again", ExitCode.USAGE)
    return first


def _from_file(variable: str) -> bytes:
    """Return the first line of the file that a variable names."""
    name = os.environ[variable]
    try:
        with open(name, "rb") as file:
            found = file.readline(MAX_BYTES + 1).rstrip(b"\r\n")
    except OSError as error:
        problem = f"cannot read {name}, which {variable} names: {error.strerror}"
        raise UserError(problem, "correct or unset the variable", ExitCode.CONFIG) from error
    if not 0 < len(found) <= MAX_BYTES:
        problem = f"{name}, which {variable} names, has no passphrase in its first line"
        raise UserError(problem, "write one into it", ExitCode.CONFIG)
    return found


def _asked(question: str) -> bytes:
    if not sys.stderr.isatty():
        raise UserError(
            "this volunteer's files are encrypted, and there is no terminal to ask for the "
            "passphrase",
            f"set {VARIABLE} to a file that has it in its first line",
            ExitCode.CONFIG,
        )
    return getpass.getpass(question).encode()
