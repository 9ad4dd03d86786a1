"""A data folder in the making: shards that grow at their end, and what is needed to go on.

`.plan.json` says what the folder is made of, `.progress.json` how much of it is noted as done. What
was appended is on disk before it is noted; what lies behind the last note is cut off by the next
run. The index is written last, so no half folder is ever taken for a whole one.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import msgspec

from model_zoo.data import DataError
from model_zoo.datasets.folder import Tally, is_data_folder
from model_zoo.specs.merkle import DIGEST_BYTES, LEAF, LEAF_BYTES
from model_zoo.specs.shards import LEAVES, SHARD_BYTES, TOKENIZER, shard_name, shard_sizes
from model_zoo.specs.state_hash import LeafHasher

PLAN, NOTE, LOCK = ".plan.json", ".progress.json", ".lock"
_PARTIAL = ".partial"
COPY_BYTES = 32 << 20
"""Appended at once."""


Tell = Callable[[int, int], object]
"""Is told how far it is: bytes of the sources' files that are done, and of all."""


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is on disk and counted.

    Fields:
        pieces: of a build, that are appended.
        size_bytes: of all shards.
        tally: of a build, of these pieces.
    """

    pieces: int = 0
    size_bytes: int = 0
    tally: Tally = Tally()


def read_note(out: Path) -> Note:
    """Return the last note of a folder; that nothing is done where it has none, or one of another
    program, which counts otherwise."""
    try:
        return msgspec.json.decode((out / NOTE).read_bytes(), type=Note)
    except (FileNotFoundError, msgspec.DecodeError):
        return Note()


class Assembly:
    """The shards of a folder and the digests of their leaves.

    Args:
        out: the folder.
        size_bytes: how much of it is noted; what lies behind is cut off.

    Raises:
        DataError: less is there than was noted.

    Attributes:
        size_bytes: of all shards.
    """

    def __init__(self, out: Path, size_bytes: int) -> None:
        self._out, self.size_bytes = out, size_bytes
        self._hasher = LeafHasher(LEAF_BYTES, LEAF)
        whole = size_bytes // LEAF_BYTES
        least = {out / shard_name(n): size for n, size in enumerate(shard_sizes(size_bytes))}
        for path, size in (least | {out / LEAVES: whole * DIGEST_BYTES}).items():
            if size and (not path.is_file() or path.stat().st_size < size):
                raise DataError(f"{path} has lost what was written: remove {out} and begin again")
        for path in out.glob("shard-*.bin"):
            number = int(path.stem.removeprefix("shard-"))
            os.truncate(path, max(0, min(SHARD_BYTES, size_bytes - number * SHARD_BYTES)))
        leaves = out / LEAVES
        leaves.touch()
        os.truncate(leaves, whole * DIGEST_BYTES)
        if rest := size_bytes % LEAF_BYTES:  # the unfinished leaf is hashed again
            number, place = divmod(whole * LEAF_BYTES, SHARD_BYTES)
            with (out / shard_name(number)).open("rb") as file:
                file.seek(place)
                self._hasher.update(memoryview(file.read(rest)))

    def append(self, data: bytes) -> None:
        """Append bytes; they are on disk afterwards."""
        while data:
            number, place = divmod(self.size_bytes, SHARD_BYTES)
            fits = data[: SHARD_BYTES - place]
            append(self._out / shard_name(number), fits)
            self._hasher.update(memoryview(fits))
            self._add_leaves(self._hasher.whole)
            self._hasher.whole.clear()
            self.size_bytes += len(fits)
            data = data[len(fits) :]

    def end(self) -> None:
        """Add the digest of the last leaf; nothing is appended after it."""
        self._add_leaves(self._hasher.digests)

    def _add_leaves(self, leaves: list[bytes]) -> None:
        if leaves:
            append(self._out / LEAVES, b"".join(leaves))


@contextmanager
def building(out: Path) -> Iterator[None]:
    """Hold a folder; errors of the disk become words with what to do.

    Raises:
        DataError: another process holds it, or the disk refuses.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with (out / LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DataError(f"another process builds {out}") from error
            yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "free space and run the same command again; it goes on where it was"
        words = f"cannot write {error.filename or out}: {error.strerror}; choose another folder"
        raise DataError(f"the disk of {out} is full: {advice}" if full else words) from error


def begin(out: Path, plan: str) -> bool:
    """Note what the folder is made of; return whether it is complete already. What was begun there
    with another plan is removed, so that a corrected command can be given after one that failed.

    Args:
        out: the folder.
        plan: words that decide the result.

    Raises:
        DataError: the folder is complete and made of something else, or has other files.
    """
    digest, complete = blake2b(plan.encode()).hexdigest().encode(), is_data_folder(out)
    if (out / PLAN).exists():
        if (out / PLAN).read_bytes() == digest:
            return complete
        if complete:
            raise DataError(f"{out} is made of other data: choose another folder, or remove it")
        _clear(out)
    else:
        names = (path.name for path in out.iterdir())
        found = [name for name in names if name != LOCK and not name.endswith(_PARTIAL)]
        if found:
            raise DataError(f"{out} is not empty (it has {found[0]}): choose another folder")
    write(out / PLAN, digest)
    return False


def _clear(out: Path) -> None:
    """Remove what an unfinished folder has, the plan apart, so that it stays one until the end."""
    for path in (out / NOTE, out / TOKENIZER, out / LEAVES, *out.glob("shard-*.bin")):
        path.unlink(missing_ok=True)


def append(path: Path, data: bytes) -> None:
    """Append to a file; the bytes are on disk afterwards."""
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write(path: Path, data: bytes) -> None:
    """Replace a file atomically."""
    partial = path.with_name(f"{path.name}.{os.getpid()}{_PARTIAL}")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
