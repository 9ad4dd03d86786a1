"""The stored match records of a swarm, each checked: signatures, and that they belong together.

Reads the file; needs no running volunteer.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from client.errors import UserError
from client.store.agreements import load_records
from client.store.packed import DamagedFile
from protocol.errors import RemoteProtocolError
from protocol.invite import SwarmFile
from protocol.matching.preferences import MICRO
from protocol.matching.record import MatchRecord, read_record


class MatchView(Struct, frozen=True, kw_only=True):
    """The content of a valid record. Times are Unix seconds."""

    volunteer: str
    steward: str
    stage: int
    epoch: int
    rate: float
    """Microbatches per second that the volunteer offered."""
    score: int
    proposed_s: float
    held_s: float


class CheckedRecord(Struct, frozen=True, kw_only=True):
    """A stored record and the result of its check."""

    valid: bool
    problem: str = ""
    """The reason why it is not valid."""
    match: MatchView | None = None
    """None if it is not valid: then its content proves nothing."""


class RecordList(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer matches --records --json``."""

    swarm: str
    swarm_name: str
    records: list[CheckedRecord]
    schema_version: int = 1


def check_records(path: Path, swarm: SwarmFile) -> RecordList:
    """Read and check the records of a file, the newest first.

    Raises:
        UserError: the file is damaged or cannot be read.
    """
    try:
        found = load_records(path)
    except DamagedFile as error:
        raise UserError(str(error), "remove it; the volunteer begins a new one") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "make it readable") from error
    records = [_check(record, swarm.swarm) for record in reversed(found)]
    return RecordList(swarm=swarm.swarm, swarm_name=swarm.manifest.name, records=records)


def _check(record: MatchRecord, swarm: str) -> CheckedRecord:
    try:
        match = read_record(record, swarm)
    except RemoteProtocolError as error:
        return CheckedRecord(valid=False, problem=str(error))
    return CheckedRecord(
        valid=True,
        match=MatchView(
            volunteer=match.volunteer,
            steward=match.steward,
            stage=match.stage,
            epoch=match.epoch,
            rate=match.rate / MICRO,
            score=match.score,
            proposed_s=match.proposed_ms / 1000,
            held_s=match.held_ms / 1000,
        ),
    )
