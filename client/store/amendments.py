"""The founder's amendments of a swarm, and what its stages have agreed on: one file beside it.

A damaged file is set aside under another name; then members tell the amendments again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from client.store.packed import DamagedFile, load_packed, save_packed
from protocol.amendments.book import Amendments, Kept
from protocol.ids import SwarmId
from protocol.manifest import Manifest

MAX_FILE_BYTES: Final = 1024 * 1024
SET_ASIDE: Final = ".unusable"


def load_amendments(path: Path) -> tuple[Kept, str]:
    """Return what is kept (nothing without a file), and a warning if the file was set aside."""
    try:
        return load_packed(path, Kept, MAX_FILE_BYTES) or Kept(), ""
    except OSError as error:
        return Kept(), f"{path} cannot be read: {error.strerror}"
    except DamagedFile as error:
        with contextlib.suppress(OSError):
            os.replace(path, path.with_name(path.name + SET_ASIDE))
        return Kept(), f"{error}; it was set aside: members tell the founder's amendments again"


def known_amendments(path: Path, manifest: Manifest, swarm: SwarmId) -> Amendments:
    """Return the amendments of a swarm that are on this disk, for those who only read."""
    kept, _ = load_amendments(path)
    return Amendments(manifest, swarm, kept)


def save_amendments(path: Path, kept: Kept) -> None:
    """Save them; raises ``OSError`` if the disk refuses."""
    save_packed(path, kept)
