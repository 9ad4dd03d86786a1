"""Candidates for the stewardship of a stage, derived by hash from the membership view, not elected.

They follow from a view and the beacon, a number that changes every ten minutes for all members: the
first three by rank, members that a waypoint names before all others.
"""

from collections.abc import Iterable
from functools import lru_cache
from heapq import nsmallest

from protocol.ids import PeerId, Stage, rank
from protocol.matching.member import Member
from protocol.matching.timing import BEACON_S

STEWARDS = 3
"""Candidates per stage; a posting by any other peer is not believed."""


def beacon_at(wall_s: float) -> int:
    """Return the beacon at ``wall_s`` (Unix seconds)."""
    return int(wall_s // BEACON_S)


@lru_cache(maxsize=2**18)
def role_rank(beacon: int, stage: Stage, peer: PeerId) -> bytes:
    """Return the rank of ``peer`` for ``stage`` under ``beacon``; the lowest comes first."""
    return rank("steward", beacon, stage, peer)


def first(members: Iterable[Member], stage: Stage, beacon: int) -> tuple[PeerId, ...]:
    """Return up to three of ``members``, in the order in which they take a stage over."""

    def order(member: Member) -> tuple[bool, bytes]:
        return (not member.certified, role_rank(beacon, stage, member.peer))

    able = (member for member in members if member.may_decide)
    return tuple(member.peer for member in nsmallest(STEWARDS, able, key=order))
