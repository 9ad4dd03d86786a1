"""``volunteer encrypt``: encrypts the training text and the checkpoints on this disk."""

from __future__ import annotations

import time
from pathlib import Path

from msgspec import Struct

from client import at_rest
from client.cli.reach.home import find_home
from client.cli.reach.passphrase import NEW_VARIABLE, VARIABLE, chosen, opened, refuse_lost_key
from client.cli.terminal.output import human_bytes, print_json, say
from client.cli.terminal.parameters import AsJson
from client.errors import ExitCode, UserError
from client.quantities import plural
from client.store.identity import IdentityLock
from client.store.paths import make_private
from client.store.rest_files import kept_files, remove_working_copies, rewrite
from client.store.rest_key import FILE_NAME, has_key, new_key, remove_key, save_key


class Encrypted(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer encrypt --json``."""

    encrypted: bool
    """Whether files are encrypted from now on."""
    converted: list[str]
    """Files that were written again."""
    bytes: int
    """Their size without encryption."""
    schema_version: int = 1


def encrypt(*, change_passphrase: bool = False, undo: bool = False, json: AsJson = False) -> int:
    """Encrypt the training text and the checkpoints on this disk, from now on and those here.

    Stop the volunteer first. Interrupted, run it again: it goes on where it was.

    Parameters
    ----------
    change_passphrase
        Only choose a new passphrase; the files stay as they are.
    undo
        Decrypt the files, and write plain ones from now on.
    """
    if change_passphrase and undo:
        problem = "--change-passphrase and --undo do not go together"
        raise UserError(problem, exit_code=ExitCode.USAGE)
    folder = make_private(find_home().folders.data)
    with IdentityLock(folder):
        if (change_passphrase or undo) and not has_key(folder):
            raise UserError("the files here are not encrypted", "run: volunteer encrypt")
        try:
            if change_passphrase:
                save_key(folder, opened(folder), chosen(NEW_VARIABLE))
                say("the new passphrase counts from now on")
                return ExitCode.OK
            done = _convert(folder, undo=undo)
        except OSError as error:
            problem = f"cannot write to {folder}: {error.strerror or error}"
            raise UserError(problem, "free space, and run it again") from error
    _report(folder, done, as_json=json)
    return ExitCode.OK


def _convert(folder: Path, *, undo: bool) -> Encrypted:
    """Rewrite the files of the other kind; the key is there as long as one of them needs it."""
    refuse_lost_key(folder)
    if has_key(folder):
        key = opened(folder)
    else:
        key = new_key()
        save_key(folder, key, chosen(VARIABLE))
    at_rest.use(key, writes=not undo)
    remove_working_copies(folder)
    converted, size, began = list[str](), 0, time.monotonic()
    for path in kept_files(folder, encrypted=undo):
        try:
            size += rewrite(path)
        except (at_rest.Damaged, at_rest.Locked) as error:
            raise UserError(
                f"{path}: {error.strerror}",
                "move the file away, and run it again",
            ) from error
        converted.append(str(path))
    if undo:
        remove_key(folder)
    if converted:
        rate = human_bytes(size / max(time.monotonic() - began, 1e-3))
        say(f"{plural(len(converted), 'file')}, {human_bytes(size)}, {rate}/s")
    return Encrypted(encrypted=not undo, converted=converted, bytes=size)


def _report(folder: Path, done: Encrypted, *, as_json: bool) -> None:
    if as_json:
        print_json(done)
    elif done.encrypted:
        say(f"encrypted: checkpoints, texts and working copies in {folder}")
        say(f"back up {FILE_NAME} with them; without it and the passphrase they are lost")
        say(f"join and all that reads them ask for the passphrase, or read {VARIABLE}")
        say("the blocks of the plain files may stay on the disk until something overwrites them")
    else:
        say(f"not encrypted any more: the files in {folder}")
