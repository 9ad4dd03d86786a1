"""The training data of this volunteer, in folders named by their roots, and the weights that
imported models begin with, in files named by the digest of their bytes.

Beside the data of a swarm founded here lies a note of the data folder that the founder named, as a
second place to look. Readers check the digest.
"""

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client.store.atomic import write_atomic
from model_zoo.specs.data import DataSpec
from model_zoo.specs.shards import INDEX, LEAVES, TOKENIZER, shard_name, shard_sizes

SUFFIX: Final = ".bin"
TOKENS_SUFFIX: Final = ".tokens"
TOKENIZER_SUFFIX: Final = ".json"
ORIGIN_SUFFIX: Final = ".origin"


@dataclass(frozen=True, slots=True)
class TextStore:
    """The data in ``folder``; raises ``OSError`` where the disk does."""

    folder: Path

    def path(self, digest: str) -> Path:
        """Return the path for weights with a digest, whether they exist or not."""
        return self.folder / f"{digest}{SUFFIX}"

    def tokens(self, digest: str) -> Path:
        """Return the path for a whole data folder with a root, whether it exists or not."""
        return self.folder / f"{digest}{TOKENS_SUFFIX}"

    def leaves(self, digest: str) -> Path:
        """Return the folder for leaves of the data with a root."""
        return self.folder / f"{digest}.leaves"

    def tokenizer(self, digest: str) -> Path:
        """Return the path for the tokenizer that the data with a root bring."""
        return self.folder / f"{digest}{TOKENIZER_SUFFIX}"

    def origin(self, digest: str) -> Path | None:
        """Return the data folder that the founder named, if the swarm was founded here."""
        try:
            name = self._origin(digest).read_bytes()
        except OSError:
            return None
        return Path(os.fsdecode(name)) if name else None

    def remember(self, digest: str, origin: Path | None) -> None:
        """Note that data are a founder's, and the folder that it named; None: there is no other."""
        write_atomic(self._origin(digest), os.fsencode(origin) if origin else b"")

    def _origin(self, digest: str) -> Path:
        return self.folder / f"{digest}{ORIGIN_SUFFIX}"


def keep_folder(folder: Path, data: DataSpec, store: TextStore) -> Path:
    """Keep a data folder in the store without a second copy, and return where it is kept.

    Its files get a second name in the store, so that they stay when the folder is removed. Between
    two disks that cannot be, and the folder is used where it is.

    Args:
        folder: of ``volunteer data build``.
        data: what it has.
        store: of this volunteer.

    Raises:
        OSError: the disk is full or not writable.
    """
    kept = store.tokens(data.digest)
    if (kept / INDEX).exists():
        return kept
    made = kept.with_name(f".{kept.name}.tmp")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(mode=0o700, parents=True)
    shards = [shard_name(number) for number, _ in enumerate(shard_sizes(data.size_bytes))]
    others = [TOKENIZER] if data.tokenizer is not None else []
    try:
        for name in (*shards, LEAVES, *others, INDEX):
            os.link(folder / name, made / name)
        made.replace(kept)
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
            return folder
        raise
    return kept


def is_founders(path: Path) -> bool:
    """Whether a file is of the data folder of a swarm founded here."""
    text = path.parent if path.parent.suffix == TOKENS_SUFFIX else path
    return text.with_suffix(ORIGIN_SUFFIX).exists()
