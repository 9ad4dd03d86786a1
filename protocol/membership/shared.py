"""Kinds with one record per author, so that several peers can speak for one stage at a time.

Two stewards of a stage that do not know of each other both post, and all but one of its candidates
attest. The matching weighs these records against each other, so none may displace another's. The
record's key is ``subject/author``: every author has its own slot in the store, in digests and on
the wire. Pure functions and bounds; no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.membership.record import Record

POSTING: Final = "posting"
"""A steward's posting about its stage; the subject is the stage in decimal."""
BALLOT: Final = "ballot"
"""A steward's ballot of its stage in a full epoch; the subject is the stage."""
EPOCH: Final = "epoch"
"""The state of a full epoch, by its chair; the only subject is ``epoch``."""
ATTEST: Final = "attest"
"""A candidate's attestation of a ballot or a decision; the subject is a stage or ``epoch``."""
SHARED_KINDS: Final = frozenset((POSTING, BALLOT, EPOCH, ATTEST))

WHOLE: Final = "epoch"
"""The subject of records about all stages at once."""
MAX_AUTHORS: Final = 8
"""Authors per subject: three are candidates, and as many others were when the beacon began."""
MAX_SHARED_BYTES: Final = 2048
SHARED_TTL_S: Final = 60

Standing = Callable[[str, PeerId], int]
"""(subject, author) -> weight; when a subject is full, the author with the lowest is dropped."""


def shared_key(subject: str, author: PeerId) -> str:
    """Return the key of an author's record."""
    return f"{subject}/{author}"


def subject_of(kind: str, key: str) -> str:
    """Return a record's subject: its key, without the author for kinds with one per author."""
    return key.partition("/")[0] if kind in SHARED_KINDS else key


def subjects(kind: str, stages: int) -> frozenset[str]:
    """Return the subjects that a kind has in a swarm of ``stages`` stages."""
    names = frozenset(map(str, range(stages)))
    return {EPOCH: frozenset((WHOLE,)), ATTEST: names | {WHOLE}}.get(kind, names)


def check_shared(kind: str, signer: PeerId, record: Record, known: frozenset[str]) -> None:
    """Refuse a record under another author's key or about a subject that does not exist.

    Args:
        kind: one of ``SHARED_KINDS``.
        signer: verified author.
        record: the record to check.
        known: the kind's subjects, see ``subjects``.

    Raises:
        RemoteProtocolError: its kind and ``-forged`` or ``-malformed``.
    """
    subject, _, author = record.key.partition("/")
    if subject not in known:
        raise RemoteProtocolError(f"{kind}-malformed", "the key is no stage", penalty=20)
    if author != signer:
        raise RemoteProtocolError(f"{kind}-forged", "speaks for another peer", penalty=50)
