"""Encryption of files at rest: training text, states and tensors in transit.

A process has the key of its home (``use``), or none. With a key it encrypts all that is written
through this module; without one it writes plain bytes. A file tells which it is, so both kinds can
be read side by side. Files of text or weights are opened through this module only.

An encrypted file is a header of 64 bytes and chunks of 1 MiB. Each chunk is encrypted by itself
with XChaCha20-Poly1305, under a random nonce, with a key of this file, and bound to its place.
Members ask for chunks in any order and downloads write them in any order, so a stream that can only
be read from its start (libsodium's secretstream) does not do. The header's code binds the size: a
file that was shortened or lengthened is damaged. An older version of a whole file is not detected
here; states and texts are compared with their hashes by their readers.

State: the key of this process.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol, cast

from nacl.bindings import (
    crypto_aead_xchacha20poly1305_ietf_decrypt as decrypt,
)
from nacl.bindings import (
    crypto_aead_xchacha20poly1305_ietf_encrypt as encrypt,
)
from nacl.exceptions import CryptoError

KEY_BYTES: Final = 32
CHUNK_BYTES: Final = 1 << 20
MAGIC: Final = b"VOLREST1"
NONCE_BYTES: Final = 24
OVERHEAD_BYTES: Final = NONCE_BYTES + 16
"""Of every chunk: its nonce and its tag."""
UNFINISHED: Final = (1 << 64) - 1
"""The size that a file has in its header until all of it is written."""

_SEALED_CHUNK_BYTES = CHUNK_BYTES + OVERHEAD_BYTES
_HEADER = struct.Struct("<8s8s16sQ24s")


class Damaged(OSError):
    """The file was changed, shortened or lengthened after it was written."""

    def __init__(self, name: str) -> None:
        super().__init__(errno.EIO, "it is encrypted, and damaged", name)


class Locked(OSError):
    """The file is encrypted with a key that this process does not have; it may be sound."""

    def __init__(self, name: str) -> None:
        super().__init__(errno.EACCES, "it is encrypted with a key that is not at hand", name)


class Writable(Protocol):
    """Takes bytes one behind the other."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Append bytes."""


class _Held(NamedTuple):
    key: bytes | None = None
    writes: bool = False


_held = _Held()


def use(key: bytes | None, *, writes: bool = True) -> None:
    """Set the key of this process; None: it has none.

    Args:
        key: 32 bytes.
        writes: whether files are encrypted from now on; otherwise the key is for reading only.
    """
    global _held
    _held = _Held(key, writes and key is not None)


def key_to_hand_on() -> bytes:
    """Return what a child process is to ``use``; empty: no key."""
    return _held.key or b"" if _held.writes else b""


def is_encrypted(path: Path) -> bool:
    """Tell whether a file is an encrypted one; needs no key. Raises ``OSError``."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


# --- reading ----------------------------------------------------------------------------------


def open_read(path: Path) -> BinaryIO:
    """Open a plain or encrypted file for reading its plain bytes, at any place.

    Raises:
        Locked: this process does not have the key.
        Damaged: the file was tampered with; also raised while it is read.
        OSError: it cannot be read now.
    """
    file = path.open("rb")
    try:
        header = file.read(_HEADER.size)
        if not header.startswith(MAGIC):
            file.seek(0)
            return file
        file_id, size = _parse_header(header, path.name)
        chunks = _Chunks(file.fileno(), file_id, path.name)
        if size == UNFINISHED or os.fstat(file.fileno()).st_size != _sealed_bytes(size):
            raise Damaged(path.name)
        return cast(BinaryIO, io.BufferedReader(_Reader(file, chunks, size), CHUNK_BYTES))
    except BaseException:
        file.close()
        raise


def read_bytes(path: Path) -> bytes:
    """Return the plain bytes of a file; raises as ``open_read``."""
    with open_read(path) as file:
        return file.read()


class _Chunks:
    """The chunks of one file, encrypted in place."""

    def __init__(self, descriptor: int, file_id: bytes, name: str) -> None:
        key = _key_of(file_id)
        if key is None:
            raise Locked(name)
        self._descriptor, self._key, self._id, self._name = descriptor, key, file_id, name

    def read(self, index: int) -> bytes:
        sealed = _pread(self._descriptor, _SEALED_CHUNK_BYTES, _place(index))
        nonce, rest = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        try:
            return decrypt(rest, self._bound(index), nonce, self._key)
        except (CryptoError, TypeError, ValueError) as error:  # the last two: it is too short
            raise Damaged(self._name) from error

    def write(self, index: int, data: bytes) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = nonce + encrypt(data, self._bound(index), nonce, self._key)
        _pwrite(self._descriptor, sealed, _place(index))

    def write_header(self, size: int) -> None:
        _pwrite(self._descriptor, _build_header(self._id, size), 0)

    def _bound(self, index: int) -> bytes:
        return self._id + index.to_bytes(8, "little")


class _Reader(io.RawIOBase):
    """The plain bytes of an encrypted file; holds one chunk."""

    def __init__(self, file: BinaryIO, chunks: _Chunks, size: int) -> None:
        self._file, self._chunks, self._size = file, chunks, size
        self._at = 0
        self._index, self._chunk = -1, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        if self._at >= self._size:
            return 0
        index, begin = divmod(self._at, CHUNK_BYTES)
        if index != self._index:
            self._index, self._chunk = index, self._chunks.read(index)
        part = self._chunk[begin : begin + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def close(self) -> None:
        self._file.close()
        super().close()


# --- writing ----------------------------------------------------------------------------------


@contextmanager
def writing(file: BinaryIO) -> Iterator[Writable]:
    """Yield what takes the plain bytes of a file that is open for writing and empty.

    The file is complete when the block ends; it is not flushed. Raises ``OSError``.
    """
    if not _held.writes:
        yield file
        return
    file.flush()
    sealer = _Sealer(file.fileno(), getattr(file, "name", ""))
    yield sealer
    sealer.finish()


class _Sealer:
    """Encrypts bytes one behind the other."""

    def __init__(self, descriptor: int, name: object) -> None:
        file_id = secrets.token_bytes(16)
        self._chunks = _Chunks(descriptor, file_id, str(name))
        self._pending = bytearray()
        self._written = 0
        self._chunks.write_header(UNFINISHED)

    def write(self, data: bytes | memoryview, /) -> None:
        self._pending += data
        while len(self._pending) >= CHUNK_BYTES:
            self._emit(CHUNK_BYTES)

    def finish(self) -> None:
        size = self._written * CHUNK_BYTES + len(self._pending)
        if self._pending:
            self._emit(len(self._pending))
        self._chunks.write_header(size)

    def _emit(self, count: int) -> None:
        self._chunks.write(self._written, bytes(self._pending[:count]))
        del self._pending[:count]
        self._written += 1


class Filling:
    """A file that is written in any order, in pieces that begin at multiples of ``CHUNK_BYTES``.

    It continues an unfinished file at ``path``; one that is not like those that this process writes
    is begun again. Methods raise ``OSError``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._chunks = self._continued()
        except BaseException:
            os.close(self.descriptor)
            raise

    def _continued(self) -> _Chunks | None:
        header = _pread(self.descriptor, _HEADER.size, 0)
        if header.startswith(MAGIC) != _held.writes:
            os.ftruncate(self.descriptor, 0)
        if not _held.writes:
            return None
        try:
            file_id = _parse_header(header, self._path.name)[0]
        except OSError:
            os.ftruncate(self.descriptor, 0)
            file_id = secrets.token_bytes(16)
        return _Chunks(self.descriptor, file_id, self._path.name)

    def write(self, place: int, data: bytes) -> None:
        """Write plain bytes at a place."""
        if self._chunks is None:
            _pwrite(self.descriptor, data, place)
            return
        if os.fstat(self.descriptor).st_size == 0:
            self._chunks.write_header(UNFINISHED)
        for begin in range(0, len(data), CHUNK_BYTES):
            index = (place + begin) // CHUNK_BYTES
            self._chunks.write(index, data[begin : begin + CHUNK_BYTES])

    def read(self, place: int, count: int) -> bytes:
        """Return the bytes at a place that were written, fewer at the end; where none were, zeros
        or nothing."""
        if self._chunks is None:
            return _pread(self.descriptor, count, place)
        found = list[bytes]()
        for index in range(place // CHUNK_BYTES, -(-(place + count) // CHUNK_BYTES)):
            try:
                found.append(self._chunks.read(index))
            except Damaged:  # mostly one that was not written yet
                break
        return b"".join(found)

    @property
    def length(self) -> int:
        """At least so many plain bytes have a place in the file."""
        size = os.fstat(self.descriptor).st_size
        return size if self._chunks is None else max(0, size - _HEADER.size)

    def finish(self, size: int) -> None:
        """The file is complete with so many plain bytes."""
        if self._chunks is None:
            os.ftruncate(self.descriptor, size)
            return
        os.ftruncate(self.descriptor, _sealed_bytes(size))
        self._chunks.write_header(size)

    @property
    def empty(self) -> bool:
        """Whether nothing was ever written to it."""
        return os.fstat(self.descriptor).st_size == 0

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)


def sealed(data: bytes) -> bytes:
    """Return bytes as this process writes them; for files that end with it."""
    if not _held.writes or _held.key is None:
        return data
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + encrypt(data, b"", nonce, _derived(_held.key, b"", b"piece"))


def unsealed(data: bytes) -> bytes:
    """Return the bytes that ``sealed`` was given; raises ``Damaged``."""
    if not _held.writes or _held.key is None:
        return data
    nonce, rest = data[:NONCE_BYTES], data[NONCE_BYTES:]
    try:
        return decrypt(rest, b"", nonce, _derived(_held.key, b"", b"piece"))
    except (CryptoError, TypeError, ValueError) as error:
        raise Damaged("") from error


# --- header and keys --------------------------------------------------------------------------


def _build_header(file_id: bytes, size: int) -> bytes:
    key = _held.key
    if key is None:
        raise RuntimeError("headers are written by processes with a key")
    start = _HEADER.pack(MAGIC, _key_id(key), file_id, size, bytes(24))[:-24]
    return start + _code(key, start)


def _parse_header(header: bytes, name: str) -> tuple[bytes, int]:
    """Return the file's id and size; raises ``Locked`` or ``Damaged``."""
    if len(header) != _HEADER.size:
        raise Damaged(name)
    _, key_id, file_id, size, code = _HEADER.unpack(header)
    key = _held.key
    if key is None or key_id != _key_id(key):
        raise Locked(name)
    if not compare_digest(code, _code(key, header[:-24])):
        raise Damaged(name)
    return file_id, size


def _code(key: bytes, start: bytes) -> bytes:
    return blake2b(start, key=key, digest_size=24, person=b"volunteer head").digest()


def _key_id(key: bytes) -> bytes:
    return blake2b(key=key, digest_size=8, person=b"volunteer id").digest()


def _key_of(file_id: bytes) -> bytes | None:
    return None if _held.key is None else _derived(_held.key, file_id, b"file")


def _derived(key: bytes, subject: bytes, use: bytes) -> bytes:
    return blake2b(subject, key=key, digest_size=KEY_BYTES, person=b"volunteer " + use).digest()


def _sealed_bytes(size: int) -> int:
    return _HEADER.size + size + -(-size // CHUNK_BYTES) * OVERHEAD_BYTES


def _place(index: int) -> int:
    return _HEADER.size + index * _SEALED_CHUNK_BYTES


def _pread(descriptor: int, count: int, place: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        part = os.pread(descriptor, count - len(found), place + len(found))
        if not part:
            break
        found += part
    return bytes(found)


def _pwrite(descriptor: int, data: bytes, place: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, place)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rest, place = rest[written:], place + written
