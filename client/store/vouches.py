"""By what signatures this volunteer belongs to a swarm that is entered by invitation: one file.

It also holds the invites that it has made, and the expulsions that it knows of. A damaged file is
set aside under another name; then a member has to invite this volunteer again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from client.store.packed import DamagedFile, load_packed, save_packed
from protocol.vouching.register import Kept

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
SET_ASIDE: Final = ".unusable"


def load_vouches(path: Path) -> tuple[Kept, str]:
    """Return what is kept (nothing without a file), and a warning if the file was set aside."""
    try:
        return load_packed(path, Kept, MAX_FILE_BYTES) or Kept(), ""
    except OSError as error:
        return Kept(), f"{path} cannot be read: {error.strerror}"
    except DamagedFile as error:
        with contextlib.suppress(OSError):
            os.replace(path, path.with_name(path.name + SET_ASIDE))
        return Kept(), f"{error}; it was set aside: ask a member for a new invite"


def save_vouches(path: Path, kept: Kept) -> None:
    """Save it, readable by its owner alone; raises ``OSError`` if the disk refuses."""
    save_packed(path, kept)
