"""What this volunteer's audits came to, today and by member: one small file per swarm."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from client.store.atomic import write_atomic
from client.store.paths import create_folders
from protocol.wire.fields import PeerText

MAX_MEMBERS: Final = 256
MAX_FILE_BYTES: Final = MAX_MEMBERS * 1024
Count = Annotated[int, Meta(ge=0, lt=2**53)]


class Tally(Struct, frozen=True):
    """Results of audits."""

    agree: Count = 0
    disagree: Count = 0
    unchecked: Count = 0
    """Could not be checked: the member had gone, or this machine could not compute it."""


class AuditedMember(Struct, frozen=True):
    """Our audits of one member."""

    peer: PeerText
    tally: Tally = Tally()
    fault: Annotated[str, Meta(max_length=300)] = ""
    """The newest result that did not agree, in words; empty: there was none."""


class KeptAudits(Struct, frozen=True):
    """See the module's docstring."""

    day: date
    """Of the local clock."""
    contributions: Count = 0
    """Of others, in steps that were closed here on that day."""
    today: Tally = Tally()
    members: Annotated[tuple[AuditedMember, ...], Meta(max_length=MAX_MEMBERS)] = ()
    """The one that was audited last is the last."""


def load_audits(path: Path) -> KeptAudits | None:
    """Return the saved results; None if there are none that can be read."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_FILE_BYTES), type=KeptAudits)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def save_audits(path: Path, audits: KeptAudits) -> None:
    """Save results; raises ``OSError``."""
    create_folders(path.parent)
    write_atomic(path, msgspec.json.encode(audits))
