"""This volunteer's work for a swarm in earlier sessions: one small file per swarm."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from client.store.atomic import write_atomic


class KeptCredit(Struct, frozen=True):
    """The sum of all sessions."""

    microbatches: int = 0
    """Our microbatches in committed steps, summed over stages."""
    tokens: int = 0
    sent_bytes: int = 0
    since: float = 0.0
    """Unix seconds of the first session."""


def load_credit(path: Path) -> KeptCredit | None:
    """Return the saved sum; None if there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=KeptCredit)
    except (OSError, msgspec.MsgspecError):
        return None


def save_credit(path: Path, credit: KeptCredit) -> None:
    """Save a sum; raises ``OSError``."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, msgspec.json.encode(credit))
