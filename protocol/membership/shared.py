"""Kinds with one record per author, so that several peers can speak for one stage at a time.

Two stewards of a stage that do not know of each other both post. The matching weighs these records
against each other, so none may displace another's. The record's key is ``subject/author``: every
author has its own slot in the store, in digests and on the wire. Pure; no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.membership.record import Record

POSTING: Final = "posting"
"""A steward's posting about its stage; the subject is the stage in decimal."""
SHARED_KINDS: Final = frozenset((POSTING,))

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


def check_shared(kind: str, signer: PeerId, record: Record, known: frozenset[str]) -> None:
    """Refuse a record under another author's key or about a subject that does not exist.

    Args:
        kind: one of ``SHARED_KINDS``.
        signer: verified author.
        record: the record to check.
        known: the subjects, every stage in decimal.

    Raises:
        RemoteProtocolError: its kind and ``-forged`` or ``-malformed``.
    """
    subject, _, author = record.key.partition("/")
    if subject not in known:
        raise RemoteProtocolError(f"{kind}-malformed", "the key is no stage", penalty=20)
    if author != signer:
        raise RemoteProtocolError(f"{kind}-forged", "speaks for another peer", penalty=50)
