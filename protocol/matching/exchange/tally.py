"""Combines the ballots of all stages: whether the vote is at rest, and the digest of its plan.

A voter has at most one place at a time, and it reports that it stays only after every stage has
dropped it. So if at one time places and stayers add up to the electorate, no letter is in flight.
Ballots are issued at different times. They count as simultaneous if no box has changed between two
readings: the one that showed quiet (its ``fingerprint`` is in the chair's FREEZE) and the frozen
one. Pure functions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from protocol.ids import PeerId, Stage, rank
from protocol.matching.bodies import encode_body
from protocol.matching.exchange.bodies import SUM_BITS, Ballot, Round
from protocol.matching.exchange.verdict import StagePlan

Ballots = Mapping[Stage, tuple[PeerId, Ballot]]
"""The ballot of every stage with its author."""


@lru_cache(maxsize=2**16)
def mark(peer: PeerId, stage: Stage) -> int:
    """Return the fingerprint of a place; sums of fingerprints compare whole sets of places."""
    return int.from_bytes(rank("place", stage, peer)[: SUM_BITS // 8], "big")


def is_quiet(ballots: Ballots) -> bool:
    """Tell whether every elector has a place or stays, and every home box knows which."""
    found = [ballot for _, ballot in ballots.values()]
    placed = sum(ballot.held + ballot.staying for ballot in found)
    difference = sum(ballot.held_sum - ballot.known_sum for ballot in found)
    return placed == sum(ballot.electorate for ballot in found) and not difference % 2**SUM_BITS


def fingerprint(ballots: Ballots) -> bytes:
    """Return a digest (32 bytes) of every box's number of changes."""
    return _digest((s, author, ballot.changes) for s, (author, ballot) in sorted(ballots.items()))


def plan_of(ballot: Ballot) -> bytes:
    """Return the digest (32 bytes) of one frozen ballot, without its issue time."""
    undated = msgspec.structs.replace(ballot, issued_ms=0)
    return hashlib.blake2b(encode_body(undated), digest_size=32).digest()


def whole_plan(round_: Round, ballots: Ballots) -> bytes:
    """Return the digest (32 bytes) of all frozen ballots of an attempt."""
    plans = ((s, author, plan_of(ballot).hex()) for s, (author, ballot) in sorted(ballots.items()))
    return _digest([tuple(round_), *plans])


def stage_plans(ballots: Ballots) -> list[StagePlan] | None:
    """Return the input of the commit rule, or None while a ballot is not frozen."""
    found = [ballot for _, (_, ballot) in sorted(ballots.items())]
    return (
        [StagePlan(b.basis, b.projection) for b in found if b.projection]
        if all(ballot.projection for ballot in found)
        else None
    )


def _digest(parts: object) -> bytes:
    text = "\x1f".join(str(part) for part in parts)  # type: ignore[attr-defined]
    return hashlib.blake2b(text.encode(), digest_size=32).digest()
