"""Records of which there is one per author: several peers may speak for one stage at a time.

Two stewards of a stage that do not know of each other both post, and all but one of its candidates
attest; the matching weighs their words against each other, so none may displace another's. The
record's key is ``subject/author``, which makes every author's word a slot of its own everywhere: in
the store, in digests and on the wire. Pure functions and bounds; holds no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.membership.record import Record

POSTING: Final = "posting"
"""What a steward says of its stage; the subject is the stage in decimal."""
BALLOT: Final = "ballot"
"""What a steward says of its stage's vote in a full epoch; the subject is the stage."""
EPOCH: Final = "epoch"
"""What the chair of full epochs says; the only subject is ``epoch``."""
ATTEST: Final = "attest"
"""That a candidate has found a ballot or a decision right; the subject is a stage or ``epoch``."""
SHARED_KINDS: Final = frozenset((POSTING, BALLOT, EPOCH, ATTEST))

WHOLE: Final = "epoch"
"""The subject of what is said about all stages at once."""
MAX_AUTHORS: Final = 8
"""Per subject: three are candidates, as many may have been when the beacon began."""
MAX_SHARED_BYTES: Final = 2048
SHARED_TTL_S: Final = 60

Standing = Callable[[str, PeerId], int]
"""(subject, author) -> how much its word weighs; when a subject is full, the least gives way."""


def shared_key(subject: str, author: PeerId) -> str:
    """Return the key of an author's record."""
    return f"{subject}/{author}"


def subject_of(kind: str, key: str) -> str:
    """Return what a record is about: the key itself, but for kinds with one record per author."""
    return key.partition("/")[0] if kind in SHARED_KINDS else key


def subjects(kind: str, stages: int) -> frozenset[str]:
    """Return the subjects that a kind has in a swarm of ``stages`` stages."""
    names = frozenset(map(str, range(stages)))
    return {EPOCH: frozenset((WHOLE,)), ATTEST: names | {WHOLE}}.get(kind, names)


def check_shared(kind: str, signer: PeerId, record: Record, known: frozenset[str]) -> None:
    """Refuse a record under another author's key or about what does not exist.

    Raises:
        RemoteProtocolError: its kind and ``-forged`` or ``-malformed``.
    """
    subject, _, author = record.key.partition("/")
    if subject not in known:
        raise RemoteProtocolError(f"{kind}-malformed", "the key is no stage", penalty=20)
    if author != signer:
        raise RemoteProtocolError(f"{kind}-forged", "speaks for another peer", penalty=50)
