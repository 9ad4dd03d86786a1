"""Decrees: what a stage has agreed on to close a step, and the proof that it has.

Decree t of a stage names the members whose work is in version t + 1, the digest of the sums that
all of them apply, and the *electors* of step t + 1. A decree is in force once a majority of the
electors that the decree before named has voted for it; their signatures are its *certificate*. Of
two majorities of the same electors one elector is in both, and it keeps what it has signed. So no
step has two decrees, whatever clocks and networks do (Lamport, "The Part-Time Parliament", ACM TOCS
16(2), 1998; a decree is a value, an elector an acceptor, an attempt a ballot). The first electors
of a lineage are named by the lineage.

Pure values and their checks.
"""

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


def designated(members: Iterable[PeerId], stage: int, step: int) -> PeerId:
    """Return who may propose the decree of ``step`` as its first attempt, without asking for
    promises: the first by rank of the ``members`` that the decree before names; of none, nobody."""
    first = min(members, key=lambda peer: rank("leader", stage, step, peer), default=None)
    return first or PeerId("")


def digest_of(decree: Decree) -> bytes:
    """Return the BLAKE2b-256 of a decree, which votes name."""
    return hashlib.blake2b(_decrees.encode(decree), digest_size=32).digest()


def agreed(decree: Decree) -> bytes:
    """Return what the members are Ready for: the decree without what its leader adds."""
    return digest_of(replace(decree, loss_sum=0.0, ready=()))


def are_ready(decree: Decree, stage: int, era: int, step: int, verify: Verify) -> bool:
    """Whether each member of a decree has signed that it is Ready for exactly this one."""
    members = decree.members
    if len(decree.ready) != len(members) or len(set(members)) != len(members):
        return False
    body = encode_statement(Statement(stage, era, step, decree.attempt, agreed(decree)))
    return all(
        verify(peer, READY, body, signature)
        for peer, signature in zip(members, decree.ready, strict=True)
    )


def is_made_by(commit: Commit, there: Collection[PeerId], verify: Verify) -> bool:
    """Whether at least half of those who are ``there`` are members of a commit's decree, and all of
    its members have signed that they are Ready for it. Whoever does not know the electors of a step
    knows by this that no few peers have invented it."""
    members = frozenset(commit.decree.members)
    if 2 * len(members.intersection(there)) < len(set(there)):
        return False
    return are_ready(commit.decree, commit.stage, commit.era, commit.step, verify)


def promises_of(
    ballot: Ballot, promises: Iterable[Promise], electors: frozenset[PeerId], verify: Verify
) -> dict[PeerId, Promise]:
    """Return those of the promises that electors have made for an attempt, each verified.

    Args:
        ballot: stage, lineage, step, attempt and leader.
        promises: the signed promises.
        electors: of the step.
        verify: checks a signature.
    """
    found = dict[PeerId, Promise]()
    for promise in promises:
        said = replace(ballot, voted=promise.voted, value=promise.value)
        by = promise.peer, PROMISE, encode_ballot(said), promise.signature
        if promise.peer in electors and verify(*by):
            found[promise.peer] = promise
    return found


def bound_by(
    promises: Collection[Promise],
    electors: frozenset[PeerId],
) -> bytes:
    """Return the digest of the decree to which promises bind a leader: the latest one for which a
    majority may have voted. Empty: to none. One elector may lie about what it has voted for, so
    where enough others say that they have not, its word binds nobody.

    Args:
        promises: of a majority.
        electors: of the step.
    """
    unheard = electors.difference(promise.peer for promise in promises)
    latest, bound = 0, b""
    for named in [promise for promise in promises if promise.value]:
        by = unheard.union(p.peer for p in promises if p.value == named.value)
        if named.voted > latest and is_majority(by, electors):
            latest, bound = named.voted, named.value
    return bound


def encode_ballot(ballot: Ballot) -> bytes:
    """Return what an elector signs."""
    return _ballots.encode(ballot)


def voters(commit: Commit, electors: frozenset[PeerId] | None, verify: Verify) -> frozenset[PeerId]:
    """Return those of the electors of its step whose votes a commit carries, each verified; None:
    everybody whose vote it carries."""
    where = (commit.stage, commit.era, commit.step, commit.attempt, commit.leader)
    body = encode_ballot(Ballot(*where, commit.attempt, digest_of(commit.decree)))
    signed = [vote for vote in commit.votes if electors is None or vote[0] in electors]
    return frozenset(peer for peer, signature in signed if verify(peer, VOTE, body, signature))


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


def electors(of: int, members: Iterable[PeerId], beside: Iterable[PeerId] = ()) -> list[PeerId]:
    """Return as many electors as there may be: ``members``, then peers ``beside``, by their ranks
    in a stage, or in the lineage that they begin."""
    ours = frozenset(members)
    order = sorted(
        ours.union(beside), key=lambda peer: (peer not in ours, rank("elector", of, peer))
    )
    return sorted(order[: limits.MAX_ELECTORS])
