"""The file of the newest statements and votes that we have signed.

It is written in place with one call before each new statement is sent, without waiting for the
disk: it survives the death of the process, and may be old after a power loss. Its hash shows
damage, and the boot in which it was written whether it may be old (``notary.py``).
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from client.store.persisted import DamagedFile
from protocol.decree.elector import Term
from protocol.evidence.word import Mark

MAX_FILE_BYTES: Final = 2**20
HEAD_BYTES: Final = 20


class Kept(Struct, frozen=True, array_like=True):
    """The content of the file."""

    marks: list[Mark]
    boot: str = ""
    """Id of the machine's boot in which it was written; empty: the system has none."""
    terms: list[Term] = []
    """What our elector has said."""


_decoder = msgspec.msgpack.Decoder(Kept)


class MarksFile:
    """One file, which is opened for each write and needs no closing."""

    def __init__(self, path: Path) -> None:
        """Make the folder; raises ``OSError``."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path

    def read(self) -> Kept | None:
        """Return the newest content, None without any; raises ``DamagedFile`` and ``OSError``."""
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES)
        except FileNotFoundError:
            return None
        body = content[HEAD_BYTES : HEAD_BYTES + int.from_bytes(content[:4], "big")]
        if _head(body) != content[:HEAD_BYTES]:
            raise DamagedFile(f"{self._path} is damaged")
        try:
            return _decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DamagedFile(f"{self._path} is damaged: {error}") from error

    def write(self, kept: Kept) -> None:
        """Replace the content; raises ``OSError``."""
        body = msgspec.msgpack.encode(kept)
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, _head(body) + body, 0)
        finally:
            os.close(file)

    def spoil(self) -> None:
        """Make known that the content is old: it may lack what was signed last, which could not be
        written, and the next process must not go by it."""
        with suppress(OSError):
            os.truncate(self._path, 1)


def _head(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + hashlib.blake2b(body, digest_size=16).digest()
