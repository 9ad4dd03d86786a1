"""Who may decide for a stage: derived by hash from the membership view, never elected.

Everything follows from a view and the beacon, a number that changes every ten minutes for
everybody; age counts at the moment the beacon began, so the answer does not change with time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from heapq import nsmallest

from protocol.ids import PeerId, Stage, rank
from protocol.matching.member import Member
from protocol.matching.timing import BEACON_S, STEWARD_AGE_S

STEWARDS = 3
"""Candidates per stage; a posting by anybody else is not believed."""

Order = tuple[bool, bool, bytes]
Members = Mapping[PeerId, Member]


def beacon_at(wall_s: float) -> int:
    """Return the beacon of a moment of Unix time."""
    return int(wall_s // BEACON_S)


@lru_cache(maxsize=2**18)
def role_rank(beacon: int, stage: Stage, peer: PeerId) -> bytes:
    """Return what orders peers for the stewardship of a stage; the lowest is first."""
    return rank("steward", beacon, stage, peer)


def _succession_order(member: Member, stage: Stage, beacon: int) -> Order:
    young = beacon * BEACON_S - member.joined_at < STEWARD_AGE_S
    return (young, stage == member.home_stage, role_rank(beacon, stage, member.peer))


def _rank_order(member: Member, stage: Stage, beacon: int) -> Order:
    return (False, False, role_rank(beacon, stage, member.peer))


class Shortlist:
    """The first three members of every (stage, beacon) under one order, kept as the view evolves.

    A list changes only if one of its own members does or a changed one comes before its last.
    """

    def __init__(self, order: Callable[[Member, Stage, int], Order]) -> None:
        self._order = order
        self._lists: dict[tuple[Stage, int], tuple[PeerId, ...]] = {}

    def first(self, members: Members, stage: Stage, beacon: int) -> tuple[PeerId, ...]:
        """Return up to three members in order."""
        key = (stage, beacon)
        if key not in self._lists:
            self._lists[key] = self._pick(members.values(), stage, beacon)
        return self._lists[key]

    def after(self, changed: Iterable[PeerId], members: Members) -> Shortlist:
        """Return the lists of the next view, given who came, went or changed since this one."""
        names = frozenset(changed)
        present = [members[peer] for peer in names if peer in members]
        follower = Shortlist(self._order)
        for (stage, beacon), first in self._lists.items():
            if names.isdisjoint(first):
                rivals = [*present, *(members[peer] for peer in first)]
                follower._lists[stage, beacon] = self._pick(rivals, stage, beacon)
        return follower

    def forget_before(self, beacon: int) -> None:
        """Drop the lists of beacons long past."""
        self._lists = {key: first for key, first in self._lists.items() if key[1] >= beacon}

    def _pick(self, rivals: Iterable[Member], stage: Stage, beacon: int) -> tuple[PeerId, ...]:
        able = (member for member in rivals if member.may_decide)
        first = nsmallest(STEWARDS, able, key=lambda m: self._order(m, stage, beacon))
        return tuple(member.peer for member in first)


def by_succession() -> Shortlist:
    """Return lists in the order in which candidates take a vacant stage over.

    Peers that were old enough when the beacon began come before younger ones (that clause relaxes
    itself while the swarm is young), peers that are not at home in the stage before those that are.
    """
    return Shortlist(_succession_order)


def by_rank() -> Shortlist:
    """Return the lowest ranks alone: what stays true while peers age and change stages."""
    return Shortlist(_rank_order)
