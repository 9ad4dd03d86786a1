"""One typed record in one file of this home.

A file whose name ends in ``.json`` holds JSON, any other one MessagePack. It is
replaced as a whole, so that it has the old record or the new one after a crash.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from client.decoding import json_decoder, packed_decoder
from client.store.atomic import write_atomic
from client.store.paths import create_folders

MAX_FILE_BYTES: Final = 16 << 20
"""A longer file is not decoded."""
SET_ASIDE: Final = ".unusable"

Record = TypeVar("Record")


class DamagedFile(Exception):
    """The file exists but does not contain what it should."""


class Persisted(Generic[Record]):
    """See the module's docstring.

    Args:
        path: the file; None: nothing is kept.
        kind: the type of its record.
        warn: takes what is wrong with the file, in words; by default nobody misses it.
    """

    def __init__(
        self, path: Path | None, kind: type[Record], warn: Callable[[str], object] = str
    ) -> None:
        self.path, self._kind, self._warn = path, kind, warn
        self._is_json = path is not None and path.suffix == ".json"

    def read(self) -> Record | None:
        """Return the record; None if there is no file.

        Raises:
            DamagedFile: it is too long or malformed.
            OSError: it cannot be read.
        """
        if self.path is None:
            return None
        try:
            with self.path.open("rb") as file:
                encoded = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(encoded) > MAX_FILE_BYTES:
            raise DamagedFile(f"it is longer than {MAX_FILE_BYTES} bytes")
        decoder = json_decoder(self._kind) if self._is_json else packed_decoder(self._kind)
        try:
            return decoder.decode(encoded)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DamagedFile(str(error)) from error

    def peek(self) -> Record | None:
        """Return the record; None if there is none that can be read. The file stays as it is."""
        try:
            return self.read()
        except (DamagedFile, OSError):
            return None

    def load(self, why_unusable: Callable[[Record], str] = lambda _: "") -> Record | None:
        """Return the record of a file that this process writes; None if there is none to use.

        One that cannot be used is set aside under another name.

        Args:
            why_unusable: says what is wrong with a record; empty: nothing.
        """
        try:
            found = self.read()
            problem = "" if found is None else why_unusable(found)
        except OSError as error:
            self._warn(f"{self.path} cannot be read: {error.strerror}")
            return None
        except DamagedFile as error:
            found, problem = None, str(error)
        if not problem or self.path is None:
            return found
        with suppress(OSError):
            os.replace(self.path, self.path.with_name(self.path.name + SET_ASIDE))
        self._warn(f"{self.path} cannot be used and was set aside: {problem}")
        return None

    def save(self, record: Record) -> None:
        """Replace the file; its owner alone can read it.

        Raises:
            OSError: the disk is full or the folder cannot be written; the old file stays.
        """
        if self.path is None:
            return
        create_folders(self.path.parent)
        encode = msgspec.json.encode if self._is_json else msgspec.msgpack.encode
        write_atomic(self.path, encode(record))

    def keep(self, record: Record) -> bool:
        """Save the record, and return whether that worked. A full disk must not stop training, so
        it is only told."""
        try:
            self.save(record)
        except OSError as error:
            words = f"{self.path} cannot be written: {error.strerror or error}"
            self._warn(f"{words}; make room: volunteer cache --prune")
            return False
        return True

    def remove(self) -> None:
        """Remove the file, if there is one; raises ``OSError``."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
