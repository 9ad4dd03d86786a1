"""By what signatures this volunteer belongs to a swarm that is entered by invitation: one file.

It also holds the invites that it has made and the expulsions that it knows of. A damaged file is
set aside under another name; then a member has to invite this volunteer again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import msgspec

from client.store.atomic import write_atomic
from client.store.paths import create_folders
from protocol.vouching.register import Kept

MAX_FILE_BYTES: Final = 8 * 1024 * 1024
SET_ASIDE: Final = ".unusable"


def load_vouches(path: Path) -> tuple[Kept, str]:
    """Return what is kept (nothing without a file), and a warning if the file was set aside."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        return msgspec.msgpack.decode(raw, type=Kept), ""
    except FileNotFoundError:
        return Kept(), ""
    except OSError as error:
        return Kept(), f"{path} cannot be read: {error.strerror}"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        with contextlib.suppress(OSError):
            os.replace(path, path.with_name(path.name + SET_ASIDE))
        words = "ask a member for a new invite"
        return Kept(), f"{path} cannot be used and was set aside: {error}; {words}"


def save_vouches(path: Path, kept: Kept) -> None:
    """Save it, readable by its owner alone; raises ``OSError`` if the disk refuses."""
    create_folders(path.parent)
    write_atomic(path, msgspec.msgpack.encode(kept))
