"""Decrees: what a stage has agreed on to close a step, and the proof that it has.

Decree t of a stage names the members whose work is in version t + 1, the digest of the sums that
all of them apply, and the *electors* of step t + 1. A decree is in force once a majority of the
electors that the decree before named has voted for it; their signatures are its *certificate*. Of
two majorities of the same electors one elector is in both, and it keeps what it has signed. So no
step has two decrees, whatever clocks and networks do (Lamport, "The Part-Time Parliament", ACM TOCS
16(2), 1998; a decree is a value, an elector an acceptor, an attempt a ballot). The first electors
of a lineage are named by the lineage.

Where all members are electors, a member votes by being Ready: its Ready is its vote in the first
attempt, and counts once all members are Ready. A later attempt takes votes: by then members have
failed, and those that are Ready for another plan may be lost before all are.

Pure values and their checks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from protocol import limits
from protocol.ids import PeerId, rank
from protocol.wire.canonical import Canonical
from protocol.wire.messages import Commit
from protocol.wire.parts import Ballot, Decree, Promise
from protocol.wire.statement import Statement, encode_statement

VOTE: Final = "vote"
PROMISE: Final = "promise"
READY: Final = "ready"

_ballots = Canonical(Ballot, "ballot")
_decrees = Canonical(Decree, "decree")
Sign = Callable[[str, bytes], bytes]
"""Signs a body of a kind (``VOTE``, ``PROMISE``, ``READY``) as ourselves: 64 bytes; empty, if we
have signed another one."""
Verify = Callable[[PeerId, str, bytes, bytes], bool]
"""Whether a peer has signed a body of a kind: peer, kind, body, signature."""


def designated(members: Iterable[str], stage: int, step: int) -> PeerId:
    """Return who may propose the decree of ``step`` as its first attempt, without asking for
    promises: the first by rank of the ``members`` that the decree before names; of none, nobody."""
    return PeerId(min(members, key=lambda peer: rank("leader", stage, step, peer), default=""))


def bare(decree: Decree) -> Decree:
    """Return what members are Ready for and electors vote for: a decree without what its leader
    adds."""
    return replace(decree, loss_sum=None, ready=())


def digest_of(decree: Decree) -> bytes:
    """Return the BLAKE2b-256 of a bare decree, which Readys and votes name."""
    return hashlib.blake2b(_decrees.encode(bare(decree)), digest_size=32).digest()


def readies(decree: Decree, stage: int, era: int, step: int, verify: Verify) -> dict[PeerId, bytes]:
    """Return the members that have signed that they are Ready for exactly this decree, each with
    its signature."""
    body = encode_statement(Statement(stage, era, step, decree.attempt, digest_of(decree)))
    signed = dict(zip(map(PeerId, decree.members), decree.ready, strict=False))
    return {p: by for p, by in signed.items() if by and verify(p, READY, body, by)}


def are_ready(decree: Decree, stage: int, era: int, step: int, verify: Verify) -> bool:
    """Whether each member of a decree has signed that it is Ready for it."""
    return len(readies(decree, stage, era, step, verify)) == len(decree.members)


def by_ready(decree: Decree, electors: frozenset[PeerId]) -> bool:
    """Whether the Readys for a decree are votes: it is that of a first attempt, and all its members
    are electors of its step."""
    return decree.attempt == 1 and electors.issuperset(map(PeerId, decree.members))


def promises_of(
    ballot: Ballot, promises: Iterable[Promise], electors: frozenset[PeerId], verify: Verify
) -> dict[PeerId, Promise]:
    """Return those of the promises that electors have made for an attempt, each verified.

    Args:
        ballot: stage, lineage, step, attempt and leader.
        promises: the signed promises.
        electors: of the step; empty: not known, everybody counts.
        verify: checks a signature.
    """
    found = dict[PeerId, Promise]()
    for promise in promises:
        peer = PeerId(promise.peer)
        value = b"" if promise.decree is None else digest_of(promise.decree)
        said = replace(ballot, voted=promise.voted, value=value)
        is_elector = peer in electors or not electors
        if is_elector and verify(peer, PROMISE, encode_ballot(said), promise.signature):
            found[peer] = promise
    return found


def bound_by(promises: Collection[Promise], electors: frozenset[PeerId]) -> Decree | None:
    """Return the decree to which promises bind a leader: the latest one for which a majority may
    have voted; None: to none. One elector may lie about what it has voted for, so where enough
    others say that they have not, its word binds nobody.

    Args:
        promises: of a majority.
        electors: of the step.
    """
    unheard = electors.difference(PeerId(promise.peer) for promise in promises)
    latest, bound = 0, None
    for decree in {digest_of(p.decree): p.decree for p in promises if p.decree}.values():
        named = [p for p in promises if p.decree and digest_of(p.decree) == digest_of(decree)]
        last = max(promise.voted for promise in named)
        by = frozenset(PeerId(promise.peer) for promise in named)
        may_be = is_majority(by | unheard, electors)
        if may_be and last == 1 and by_ready(decree, electors):
            may_be = not _denied(decree, by, unheard)
        if may_be and last > latest:
            latest, bound = last, decree
    return bound


def _denied(decree: Decree, by: frozenset[PeerId], unheard: frozenset[PeerId]) -> bool:
    """Whether a decree for which only members have voted, by their Readys, cannot be in force: it
    takes those of all, and as many members as say that they were Ready say that they were not."""
    members = frozenset(map(PeerId, decree.members))
    return by <= members and len(members - by - unheard) >= len(by)


def encode_ballot(ballot: Ballot) -> bytes:
    """Return what an elector signs."""
    return _ballots.encode(ballot)


def voters(commit: Commit, electors: frozenset[PeerId], verify: Verify) -> frozenset[PeerId]:
    """Return the electors whose votes a commit carries, each verified; ``electors`` of the step,
    empty: not known, everybody counts."""
    decree, at = commit.decree, (commit.stage, commit.era, commit.step)
    ballot = Ballot(*at, commit.attempt, commit.leader, commit.attempt, digest_of(decree))
    body, signed = encode_ballot(ballot), dict(commit.votes)
    by = {PeerId(p) for p, by in signed.items() if verify(PeerId(p), VOTE, body, by)}
    everybody = frozenset(map(PeerId, decree.members))
    first = commit.attempt == 1 and by_ready(decree, electors or everybody)
    if first and are_ready(decree, *at, verify):
        by |= everybody
    return electors.intersection(by) if electors else frozenset(by)


def is_majority(
    some: Collection[PeerId],
    electors: frozenset[PeerId],
    is_gone: Callable[[PeerId], bool] = lambda _peer: False,
) -> bool:
    """Whether some of the electors are more than half of them, or half with the first by rank.

    Args:
        some: peers; who is no elector does not count.
        electors: all of them.
        is_gone: whether an elector's process has certainly ended: it counts for neither side.
    """
    left = [peer for peer in electors if peer in some or not is_gone(peer)]
    here = electors.intersection(some)
    return 2 * len(here) + (first(electors) in here) > len(left)


@lru_cache(maxsize=64)
def first(electors: frozenset[PeerId]) -> PeerId:
    """Return the elector that decides between two halves."""
    return min(electors, key=lambda peer: rank("elector", peer), default=PeerId(""))


def first_electors(members: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """Return the electors of a lineage's first steps: of the members that are there, a few by
    rank."""
    return tuple(
        sorted(sorted(members, key=lambda peer: rank("elector", peer))[: limits.MAX_ELECTORS])
    )
