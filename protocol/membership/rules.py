"""The kinds of records: permitted authors, number, size and time to live of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocol import limits
from protocol.contributions.record import (
    COUNTED,
    MAX_COUNTED_BYTES,
    parse_counts,
)
from protocol.contributions.record import MIN_GAP_MS as COUNTED_GAP_MS
from protocol.ids import PeerId
from protocol.membership.advert import ADVERT, parse_advert
from protocol.membership.held_out import HELD_OUT, parse_held_out
from protocol.membership.measured import (
    MAX_MEASURED_BYTES,
    MEASURED,
    MIN_GAP_MS,
    parse_measurements,
)
from protocol.membership.progress import PROGRESS, parse_progress
from protocol.membership.record import Record
from protocol.membership.records import Kind, Slot
from protocol.membership.shared import (
    MAX_AUTHORS,
    MAX_SHARED_BYTES,
    POSTING,
    SHARED_TTL_S,
    Standing,
    check_shared,
)
from protocol.recovery.stored import MAX_STORED_BYTES, STORED, parse_stored
from protocol.waypoints.part import MAX_WAYPOINT_BYTES, WAYPOINT, parse_said

MAX_ADVERTS: Final = 8192
MAX_STORED: Final = 1024
"""Records of stored checkpoints; in a larger swarm some copies are not advertised."""
MAX_COUNTED_RECORDS: Final = 1024
"""Records of who contributed; in a larger swarm some are not heard, those of linked peers are."""
MAX_WAYPOINTS: Final = 512
MAX_ADVERT_BYTES: Final = 4096
MAX_PROGRESS_BYTES: Final = 64
MIN_ADVERT_TTL_S: Final = 90
PROGRESS_TTL_S: Final = 120
HELD_OUT_TTL_S: Final = 600
STORED_TTL_S: Final = 600
WAYPOINT_TTL_S: Final = 600
COUNTED_TTL_S: Final = 600
MEASURED_TTL_S: Final = 600
"""Measurements stay valid for a while after their author is gone: they are about others."""


def record_kinds(
    stages: int,
    max_adverts: int,
    standing: Standing,
    serves_last_stage: Callable[[PeerId], bool],
    newest_seq: Callable[[Slot], int] = lambda _slot: -1,
    per_step: int = limits.MAX_MICROBATCHES_PER_STEP,
) -> dict[str, Kind]:
    """Return the rules of all kinds.

    Args:
        stages: number of stages in the manifest.
        max_adverts: adverts stored at most.
        standing: weight of an author for a subject; decides which records are kept when a subject
            is full.
        serves_last_stage: only these peers may publish progress and held-out losses.
        newest_seq: number of the newest record known in a slot, -1 if there is none.
        per_step: microbatches per step.
    """

    def check_advert(signer: PeerId, record: Record) -> str | None:
        parse_advert(record.body, record.key, signer, stages)
        return None

    def check_progress(signer: PeerId, record: Record) -> str | None:
        parse_progress(record, signer)
        return None if serves_last_stage(signer) else "the signer does not serve the last stage"

    def check_held_out(signer: PeerId, record: Record) -> str | None:
        parse_held_out(record, signer)
        return None if serves_last_stage(signer) else "the signer does not serve the last stage"

    def check_measured(signer: PeerId, record: Record) -> str | None:
        parse_measurements(record.body, record.key, signer, stages)
        before = newest_seq((MEASURED, record.key))
        return "too soon after the one before" if 0 <= record.seq - before < MIN_GAP_MS else None

    def check_counted(signer: PeerId, record: Record) -> str | None:
        parse_counts(record.body, record.key, signer, stages, per_step)
        before = newest_seq((COUNTED, record.key))
        return (
            "too soon after the one before" if 0 <= record.seq - before < COUNTED_GAP_MS else None
        )

    def check_stored(signer: PeerId, record: Record) -> str | None:
        parse_stored(record.body, record.key, signer, stages)
        return None

    def check_waypoint(signer: PeerId, record: Record) -> str | None:
        parse_said(record.body, record.key, signer, stages)
        return None

    stored = min(max_adverts, MAX_STORED)
    return {
        ADVERT: Kind(max_adverts, MAX_ADVERT_BYTES, check_advert, binding=True),
        PROGRESS: Kind(limits.MAX_REPLICAS_IN_ROUND, MAX_PROGRESS_BYTES, check_progress),
        HELD_OUT: Kind(limits.MAX_REPLICAS_IN_ROUND, MAX_PROGRESS_BYTES, check_held_out),
        MEASURED: Kind(max_adverts, MAX_MEASURED_BYTES, check_measured),
        COUNTED: Kind(min(max_adverts, MAX_COUNTED_RECORDS), MAX_COUNTED_BYTES, check_counted),
        STORED: Kind(stored, MAX_STORED_BYTES, check_stored, binding=True),
        WAYPOINT: Kind(min(max_adverts, MAX_WAYPOINTS), MAX_WAYPOINT_BYTES, check_waypoint),
        POSTING: _posting_kind(stages, standing),
    }


def _posting_kind(stages: int, standing: Standing) -> Kind:
    """Return the rules of postings, which have one record per stage and author.

    Records of any author are kept while there is room, because an author may become a member or a
    candidate a moment later here than elsewhere. The matching decides which of them to believe.
    """
    known = frozenset(map(str, range(stages)))

    def check(signer: PeerId, record: Record) -> str | None:
        check_shared(POSTING, signer, record, known)
        return None

    return Kind(len(known) * MAX_AUTHORS, MAX_SHARED_BYTES, check, MAX_AUTHORS, standing)


def ttl_s(kind: str, members: int) -> int:
    """Return the time to live (seconds) of our records of a kind in a swarm of ``members``.

    Adverts live longer in larger swarms (renewed after a third of their life), so the whole
    swarm renews about 1.5 adverts per second until the bound of 600 s, whatever its size.
    """
    if kind == ADVERT:
        return min(int(limits.MAX_ADVERT_TTL_S), max(MIN_ADVERT_TTL_S, 2 * members))
    lives = {
        PROGRESS: PROGRESS_TTL_S,
        HELD_OUT: HELD_OUT_TTL_S,
        MEASURED: MEASURED_TTL_S,
        COUNTED: COUNTED_TTL_S,
        STORED: STORED_TTL_S,
        WAYPOINT: WAYPOINT_TTL_S,
    }
    return lives.get(kind, SHARED_TTL_S)
