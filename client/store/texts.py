"""The training texts of this volunteer, each in a file named by the digest of its bytes.

The text of a swarm founded here is a copy of the founder's file, so that the original may change or
move afterwards. The original's path is kept beside the copy, as a second place to look. Readers
check the digest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client.store.atomic import write_atomic

SUFFIX: Final = ".bin"
ORIGIN_SUFFIX: Final = ".origin"


@dataclass(frozen=True, slots=True)
class TextStore:
    """The texts in ``folder``; raises ``OSError`` where the disk does."""

    folder: Path

    def path(self, digest: str) -> Path:
        """Return the path for the text with a digest, whether it exists or not."""
        return self.folder / f"{digest}{SUFFIX}"

    def origin(self, digest: str) -> Path | None:
        """Return the founder's original file, if the swarm of this text was founded here."""
        try:
            name = self._origin(digest).read_bytes()
        except OSError:
            return None
        return Path(os.fsdecode(name)) if name else None

    def remember(self, digest: str, origin: Path) -> None:
        """Save the path of the file that a text was copied from."""
        write_atomic(self._origin(digest), os.fsencode(origin))

    def _origin(self, digest: str) -> Path:
        return self.folder / f"{digest}{ORIGIN_SUFFIX}"


def is_founders(path: Path) -> bool:
    """Whether a file is the text of a swarm founded here."""
    return path.with_suffix(ORIGIN_SUFFIX).exists()
