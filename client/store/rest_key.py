"""The key of a home's encrypted files, in one file that a passphrase opens.

The file is beside the identity. Its existence is the setting: with it, all that the volunteer keeps
of text and weights is encrypted. The key is random and stays when the passphrase changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import nacl.secret
import nacl.utils
from msgspec import Meta, Struct
from nacl.exceptions import CryptoError
from nacl.pwhash import argon2id

from client.at_rest import KEY_BYTES
from client.errors import ExitCode, UserError
from client.store.atomic import write_atomic
from client.store.paths import Entry

FILE_NAME: Final = Entry.AT_REST_KEY
MAX_FILE_BYTES: Final = 1024
OPERATIONS: Final = argon2id.OPSLIMIT_MODERATE
MEMORY_BYTES: Final = argon2id.MEMLIMIT_MODERATE
"""Argon2id with 256 MiB takes about a second."""


class KeyFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file; the bounds keep a foreign file from taking all memory."""

    schema_version: Literal[1]
    salt: Annotated[bytes, Meta(min_length=argon2id.SALTBYTES, max_length=argon2id.SALTBYTES)]
    operations: Annotated[int, Meta(ge=1, le=64)]
    memory_bytes: Annotated[int, Meta(ge=8192, le=4 << 30)]
    box: Annotated[bytes, Meta(max_length=256)]


class WrongPassphrase(UserError):
    """The passphrase does not open the key; nothing was changed."""

    def __init__(self) -> None:
        super().__init__(
            "the passphrase is wrong",
            "nothing was changed; try again, there is no other way to the encrypted files",
            ExitCode.REFUSED,
        )


def has_key(folder: Path) -> bool:
    """Tell whether the files of a home are encrypted."""
    return (folder / FILE_NAME).exists()


def open_key(folder: Path, passphrase: bytes) -> bytes:
    """Return the key, 32 bytes.

    Raises:
        WrongPassphrase: it is not this one.
        UserError: the file is damaged or cannot be read.
    """
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(MAX_FILE_BYTES), type=KeyFile)
    except OSError as error:
        problem = f"cannot read {path}: {error.strerror}"
        raise UserError(problem, "restore it from a backup", ExitCode.CONFIG) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        problem = f"{path} is damaged: {error}"
        raise UserError(problem, "restore it from a backup", ExitCode.CONFIG) from error
    wrapping = _wrapping(passphrase, found.salt, found.operations, found.memory_bytes)
    try:
        key = nacl.secret.SecretBox(wrapping).decrypt(found.box)
    except (CryptoError, ValueError) as error:
        raise WrongPassphrase from error
    if len(key) != KEY_BYTES:
        raise UserError(f"{path} is damaged", "restore it from a backup", ExitCode.CONFIG)
    return key


def save_key(
    folder: Path,
    key: bytes,
    passphrase: bytes,
    *,
    operations: int = OPERATIONS,
    memory_bytes: int = MEMORY_BYTES,
) -> None:
    """Save the key under a passphrase, replacing the file of an earlier one; raises ``OSError``.

    Args:
        folder: the folder of the identity.
        key: 32 bytes.
        passphrase: opens it from now on.
        operations: passes of Argon2id over its memory.
        memory_bytes: memory of Argon2id.
    """
    salt = nacl.utils.random(argon2id.SALTBYTES)
    wrapping = _wrapping(passphrase, salt, operations, memory_bytes)
    box = bytes(nacl.secret.SecretBox(wrapping).encrypt(key))
    kept = KeyFile(1, salt, operations, memory_bytes, box)
    write_atomic(folder / FILE_NAME, msgspec.json.encode(kept))


def new_key() -> bytes:
    """Return a random key."""
    return nacl.utils.random(KEY_BYTES)


def remove_key(folder: Path) -> None:
    """Remove the file; only when nothing is encrypted with its key any more."""
    (folder / FILE_NAME).unlink(missing_ok=True)


def _wrapping(passphrase: bytes, salt: bytes, operations: int, memory_bytes: int) -> bytes:
    return argon2id.kdf(
        nacl.secret.SecretBox.KEY_SIZE,
        passphrase,
        salt,
        opslimit=operations,
        memlimit=memory_bytes,
    )
