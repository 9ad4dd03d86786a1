"""By what signatures this volunteer belongs to a swarm that is entered by invitation: one file.

It also holds the invites that it has made, and the expulsions and replaced keys that it knows of. A
damaged file is set aside under another name; then a member has to invite this volunteer again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from client.store.atomic import write_atomic
from client.store.packed import DamagedFile, load_packed, save_packed
from client.store.paths import create_folders
from protocol.ids import PeerId
from protocol.vouching.register import Kept

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
SET_ASIDE: Final = ".unusable"
OLD_KEY: Final = ".old-key"


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


def keep_old_key(path: Path, peer: PeerId, seed: bytes) -> None:
    """Keep a replaced key beside the file of a swarm, until that swarm has heard of the new one;
    raises ``OSError``."""
    create_folders(path.parent)
    write_atomic(path.with_name(f"{path.stem}.{peer[-8:]}{OLD_KEY}"), seed)


def forget_old_keys(path: Path) -> bool:
    """Remove the replaced keys beside the file of a swarm; return whether there was one.

    Raises:
        OSError: the disk refuses.
    """
    found = list(path.parent.glob(f"{path.stem}.*{OLD_KEY}"))
    for one in found:
        one.unlink(missing_ok=True)
    return bool(found)
