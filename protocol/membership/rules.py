"""The kinds of records there are: who may write which, how many, how large and for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocol import limits
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.membership.advert import ADVERT, parse_advert
from protocol.membership.measured import (
    MAX_MEASURED_BYTES,
    MEASURED,
    MIN_GAP_MS,
    parse_measurements,
)
from protocol.membership.progress import PROGRESS, parse_progress
from protocol.membership.record import Record
from protocol.membership.records import Kind, Slot

POSTING: Final = "posting"
"""Record kind of the stewards' postings; the key is the stage in decimal."""

Authorise = Callable[[str, str, PeerId, bytes], str | None]
"""(kind, key, signer, body) -> None to accept a posting, else why not, in words."""

MAX_ADVERTS: Final = 8192
MAX_ADVERT_BYTES: Final = 4096
MAX_POSTING_BYTES: Final = 8192
MAX_PROGRESS_BYTES: Final = 64
MIN_ADVERT_TTL_S: Final = 90
POSTING_TTL_S: Final = 60
PROGRESS_TTL_S: Final = 120
MEASURED_TTL_S: Final = 600
"""Measurements outlive their author for a while: they are about others."""


def nobody_decides(_kind: str, _key: str, _signer: PeerId, _body: bytes) -> str | None:
    """Authorise no posting: what holds until the matching is wired in."""
    return "nobody is known to decide for this stage yet"


def record_kinds(
    stages: int,
    max_adverts: int,
    authorise: Authorise,
    serves_last_stage: Callable[[PeerId], bool],
    newest_seq: Callable[[Slot], int] = lambda _slot: -1,
) -> dict[str, Kind]:
    """Return the rules of all kinds for a swarm of ``stages`` stages."""

    def check_advert(signer: PeerId, record: Record) -> str | None:
        parse_advert(record.body, record.key, signer, stages)
        return None

    def check_posting(signer: PeerId, record: Record) -> str | None:
        if record.key not in stage_keys:
            raise RemoteProtocolError("posting-malformed", "the key is no stage", penalty=20)
        return authorise(POSTING, record.key, signer, record.body)

    def check_progress(signer: PeerId, record: Record) -> str | None:
        parse_progress(record)
        return None if serves_last_stage(signer) else "the signer does not serve the last stage"

    def check_measured(signer: PeerId, record: Record) -> str | None:
        parse_measurements(record.body, record.key, signer, stages)
        before = newest_seq((MEASURED, record.key))
        return "too soon after the one before" if 0 <= record.seq - before < MIN_GAP_MS else None

    stage_keys = frozenset(map(str, range(stages)))
    return {
        ADVERT: Kind(max_adverts, MAX_ADVERT_BYTES, check_advert),
        POSTING: Kind(stages, MAX_POSTING_BYTES, check_posting),
        PROGRESS: Kind(1, MAX_PROGRESS_BYTES, check_progress),
        MEASURED: Kind(max_adverts, MAX_MEASURED_BYTES, check_measured),
    }


def ttl_s(kind: str, members: int) -> int:
    """Return the seconds a record of ours holds in a swarm of ``members``.

    Adverts live longer in larger swarms (renewed after a third of their life), so the whole
    swarm renews about 1.5 adverts per second until the bound of 600 s, whatever its size.
    """
    if kind == ADVERT:
        return min(int(limits.MAX_ADVERT_TTL_S), max(MIN_ADVERT_TTL_S, 2 * members))
    return {PROGRESS: PROGRESS_TTL_S, MEASURED: MEASURED_TTL_S}.get(kind, POSTING_TTL_S)
