"""Who contributed to a swarm, as this volunteer counted and heard it: one small file per swarm.

It holds the accounts of the stages that were served here, the board as it was last, and the names
that members went by. A damaged file counts as none: the account then begins again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from client.store.packed import DamagedFile, load_packed, save_packed
from protocol.limits import MAX_STAGES
from protocol.names import MAX_NICKNAME_BYTES
from protocol.wire.fields import PeerText, StageIndex, StepIndex

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
MAX_NAMES: Final = 2048
Number = Annotated[int, Meta(ge=0, lt=2**60)]
Name = Annotated[str, Meta(max_length=MAX_NICKNAME_BYTES)]


class KeptStage(Struct, frozen=True):
    """The account of one stage."""

    stage: StageIndex
    version: StepIndex
    missing: Number
    seen: dict[PeerText, Number]
    taken_over: dict[PeerText, Number]


class KeptLine(Struct, frozen=True):
    """A member's vouched contribution to one stage."""

    peer: PeerText
    stage: StageIndex
    microbatches: Number
    vouchers: Number


class KeptContributions(Struct, frozen=True):
    """See the module's docstring."""

    stages: Annotated[tuple[KeptStage, ...], Meta(max_length=MAX_STAGES)] = ()
    board: tuple[KeptLine, ...] = ()
    names: dict[PeerText, Name] = {}
    schema_version: Literal[1] = 1


def load_contributions(path: Path) -> KeptContributions:
    """Return what a file holds; nothing without a file that can be read."""
    try:
        return load_packed(path, KeptContributions, MAX_FILE_BYTES) or KeptContributions()
    except (DamagedFile, OSError):
        return KeptContributions()


def save_contributions(path: Path, kept: KeptContributions) -> None:
    """Replace the file; raises ``OSError``."""
    save_packed(path, kept)
