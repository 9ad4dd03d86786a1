"""Candidates for the stewardship of a stage, derived by hash from the membership view, not elected.

They follow from a view and the beacon, a number that changes every ten minutes for all members: the
first three by rank, members that a waypoint names before all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from heapq import nsmallest

from protocol.ids import PeerId, Stage, rank
from protocol.matching.member import Member
from protocol.matching.timing import BEACON_S

STEWARDS = 3
"""Candidates per stage; a posting by any other peer is not believed."""
BEACONS_KEPT = 4
"""Beacons whose lists a follower keeps, the newest used; others are made again."""

Members = Mapping[PeerId, Member]


def beacon_at(wall_s: float) -> int:
    """Return the beacon at ``wall_s`` (Unix seconds)."""
    return int(wall_s // BEACON_S)


@lru_cache(maxsize=2**18)
def role_rank(beacon: int, stage: Stage, peer: PeerId) -> bytes:
    """Return the rank of ``peer`` for ``stage`` under ``beacon``; the lowest comes first."""
    return rank("steward", beacon, stage, peer)


def _order(member: Member, stage: Stage, beacon: int) -> tuple[bool, bytes]:
    return (not member.certified, role_rank(beacon, stage, member.peer))


class Shortlist:
    """The first three members of every (stage, beacon), cached as the view evolves.

    A list changes only if one of its members changed, or a changed member precedes its last.
    """

    def __init__(self) -> None:
        self._lists: dict[tuple[Stage, int], tuple[PeerId, ...]] = {}

    def first(self, members: Members, stage: Stage, beacon: int) -> tuple[PeerId, ...]:
        """Return up to three of ``members``, in the order in which they take a stage over."""
        key = (stage, beacon)
        if key not in self._lists:
            self._lists[key] = self._pick(members.values(), stage, beacon)
        return self._lists[key]

    def after(self, changed: Iterable[PeerId], members: Members) -> Shortlist:
        """Return the lists of the next view, given the peers that came, went or changed."""
        names = frozenset(changed)
        present = [members[peer] for peer in names if peer in members]
        follower = Shortlist()
        kept = list(dict.fromkeys(beacon for _, beacon in reversed(self._lists)))[:BEACONS_KEPT]
        for (stage, beacon), first in self._lists.items():
            if beacon in kept and names.isdisjoint(first):
                rivals = [*present, *(members[peer] for peer in first)]
                follower._lists[stage, beacon] = self._pick(rivals, stage, beacon)
        return follower

    def _pick(self, rivals: Iterable[Member], stage: Stage, beacon: int) -> tuple[PeerId, ...]:
        able = (member for member in rivals if member.may_decide)
        first = nsmallest(STEWARDS, able, key=lambda m: _order(m, stage, beacon))
        return tuple(member.peer for member in first)
