"""The identity: one Ed25519 seed in a file that only its owner can read.

Possession of the file is the identity, so a key that other users can read is refused.
"""

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from client.errors import ExitCode, UserError, system_errors
from client.store.atomic import replacing
from client.store.paths import HOME_VARIABLE, Entry
from protocol.wire.envelope import SEED_BYTES, Signer

KEY_FILE: Final = Entry.KEY


def load_identity(folder: Path) -> bytes | None:
    """Return the 32-byte seed, or None if there is no identity yet.

    Raises:
        UserError: the file is damaged, unreadable, or others can read it.
    """
    path = folder / KEY_FILE
    try:
        # not blocking: a pipe of that name must be refused, not waited for
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(
            f"cannot read the identity {path}: {error.strerror}",
            "make it a plain file that you own, or restore it from a backup",
            ExitCode.REFUSED,
        ) from error
    try:
        _refuse_shared(path, os.fstat(descriptor))
        seed = os.read(descriptor, SEED_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(seed) != SEED_BYTES:
        raise UserError(
            f"the identity {path} is damaged: {len(seed)} bytes instead of {SEED_BYTES}",
            "restore it from a backup, or remove it to become a new volunteer",
            ExitCode.CONFIG,
        )
    return seed


def ensure_identity(folder: Path) -> Signer:
    """Load the identity of a folder, or create one; two processes that race get the same one.

    Raises:
        UserError: as ``load_identity``, or the folder cannot be written.
    """
    seed = load_identity(folder)
    if seed is None:
        with (
            system_errors(
                f"cannot write an identity to {folder}",
                f"free space or make it writable, or set {HOME_VARIABLE} to another folder",
                ExitCode.CONFIG,
            ),
            replacing(folder / KEY_FILE, only_new=True) as file,
        ):
            file.write(secrets.token_bytes(SEED_BYTES))
        seed = load_identity(folder)
    if seed is None:
        raise UserError(f"the identity in {folder} vanished", "find out what removes files there")
    return Signer(seed)


def _refuse_shared(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise UserError(
            f"the identity {path} is not a file that you own",
            "use your own identity file",
            ExitCode.REFUSED,
        )
    if status.st_mode & 0o077:
        raise UserError(
            f"others can read the identity {path}",
            f"run: chmod 600 {path} (if others may have read it, remove it)",
            ExitCode.REFUSED,
        )
