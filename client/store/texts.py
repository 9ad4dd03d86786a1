"""The training texts that this volunteer keeps, each in a file named by the digest of its bytes.

The text of a swarm founded here is a copy of the founder's file, so that the file may be changed or
moved afterwards. Where the file lay is kept beside the copy: it is the second place to look.
Whether the bytes still have their digest is checked by whoever reads them.
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
        """Return where the text of a digest is kept, or would be."""
        return self.folder / f"{digest}{SUFFIX}"

    def origin(self, digest: str) -> Path | None:
        """Return the file that the founder gave, if the swarm of this text was founded here."""
        try:
            name = self._origin(digest).read_bytes()
        except OSError:
            return None
        return Path(os.fsdecode(name)) if name else None

    def remember(self, digest: str, origin: Path) -> None:
        """Keep in mind where the file lies that a text was copied from."""
        write_atomic(self._origin(digest), os.fsencode(origin))

    def _origin(self, digest: str) -> Path:
        return self.folder / f"{digest}{ORIGIN_SUFFIX}"


def is_founders(path: Path) -> bool:
    """Whether a file belongs to a text that a swarm was founded with here."""
    return path.with_suffix(ORIGIN_SUFFIX).exists()
