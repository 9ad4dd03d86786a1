"""The members that a peer sees, and the matching's numbers derived from their claims.

Immutable after construction except for caches; ``evolve`` derives the next view at a cost
proportional to the change. Equal views give equal numbers on every machine, whatever their history.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from model_zoo.specs.state import ADAMW_STATE, StateSpec
from protocol.ids import PeerId, Stage
from protocol.manifest import Manifest, StageCost
from protocol.matching import preferences, stewards
from protocol.matching.averaging import Averaging
from protocol.matching.member import Member
from protocol.matching.relatives import held_by_relatives
from protocol.matching.sharing import StageLevel
from protocol.matching.supply import Supply
from protocol.matching.timing import MEASURED_S

STEPS_PER_OCTAVE = 16
BEACONS_KEPT = 4
"""Beacons whose candidates the next view keeps, the newest used; others are found again."""


def coarse(value: float) -> float:
    """Round down to a sixteenth of the power of two below, so that most changes of a population do
    not change its median."""
    if not 0 < value < math.inf:
        return value if value == math.inf else 0.0
    mantissa, exponent = math.frexp(value)
    steps = 2 * STEPS_PER_OCTAVE
    return float(math.ldexp(math.floor(mantissa * steps) / steps, exponent))


class Sums(NamedTuple):
    """Sums over the members."""

    best: int
    """Of each member's best rate."""
    able: int
    """Members that can serve some stage."""
    by_stage: tuple[int, ...]
    """Of the rates at every stage."""

    def plus(self, rates: Sequence[int], sign: int) -> Sums:
        """Return the sums with one more member, or (-1) without it."""
        best = max(rates)
        by_stage = tuple(a + sign * b for a, b in zip(self.by_stage, rates, strict=True))
        return Sums(self.best + sign * best, self.able + sign * (best > 0), by_stage)


class Population:
    """A view of the swarm's live members under one manifest's stage costs.

    Args:
        redundancy: replicas that each stage should have (r).
        state: layout of a stage's state, which a newcomer downloads.
        averaging: of the run; None: it costs nothing.
    """

    def __init__(
        self,
        members: Iterable[Member],
        costs: Sequence[StageCost],
        redundancy: int,
        state: StateSpec = ADAMW_STATE,
        averaging: Averaging | None = None,
    ) -> None:
        self.members: Mapping[PeerId, Member] = {member.peer: member for member in members}
        self.costs = tuple(costs)
        self._state, self._averaging = state, averaging
        self._redundancy = redundancy
        self._kinds = tuple(dict.fromkeys(self.costs))
        """Distinct costs; most stages of a model cost the same."""
        self._kind_of = tuple(self._kinds.index(cost) for cost in self.costs)
        self._no_rates = (0,) * len(self.costs)
        self._candidates: dict[tuple[Stage, int], tuple[PeerId, ...]] = {}
        """By stage and beacon."""
        self._holders: dict[Stage, frozenset[PeerId]] = {}
        self._near: dict[PeerId, Mapping[Stage, int]] = {}
        for member in self.members.values():
            self._index(None, member)
        claims = [member.claim for member in self.members.values()]
        self._claims = [sorted(claim[i] for claim in claims) for i in range(3)]
        """Each claim of all members, ascending."""
        self._medians = _medians(self._claims)
        self._count_all()

    def evolve(self, changes: Mapping[PeerId, Member | None]) -> Population:
        """Return the view after members came, changed or went (None)."""
        follower = copy(self)
        follower.__dict__.pop("supply", None)
        members = dict(self.members)
        follower.members, follower._holders, follower._near = members, dict(self._holders), {}
        before = {peer: members.pop(peer) for peer in changes if peer in members}
        members.update({peer: member for peer, member in changes.items() if member})
        for peer, member in changes.items():
            follower._index(before.get(peer), member)
        gone, come = list(before.values()), [member for member in changes.values() if member]
        kept = list(dict.fromkeys(beacon for _, beacon in reversed(self._candidates)))
        follower._candidates = {
            (stage, beacon): stewards.first([*come, *(members[p] for p in first)], stage, beacon)
            for (stage, beacon), first in self._candidates.items()
            if beacon in kept[:BEACONS_KEPT] and changes.keys().isdisjoint(first)
        }
        follower._claims = _claims_after(self._claims, gone, come)
        follower._medians = _medians(follower._claims)
        if follower._medians != self._medians:
            follower._count_all()
            return follower
        follower._rates = dict(self._rates)
        for member in gone:
            follower._count(member, follower._rates.pop(member.peer), -1)
        for member in come:
            follower._add(member)
        return follower

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self.members

    # --- the swarm ------------------------------------------------------------------------------

    @property
    def stages(self) -> range:
        """Every stage index."""
        return range(len(self.costs))

    @property
    def fair_level(self) -> int:
        """Lambda: the level of each stage if all members gave their best rate, spread evenly."""
        return self._sums.best // len(self.costs)

    @property
    def able(self) -> int:
        """Members that can serve some stage."""
        return self._sums.able

    @property
    def redundancy(self) -> int:
        """r_eff = min(r, n / S rounded down), at least 1."""
        return max(1, min(self._redundancy, self.able // len(self.costs)))

    @cached_property
    def supply(self) -> Supply:
        """What serves every stage. Members that may not decide do not count: anybody may advertise
        a seat."""
        return replace(self._served, r=self.redundancy)

    def candidates(self, stage: Stage, beacon: int) -> tuple[PeerId, ...]:
        """Return up to three candidates for the stewardship of a stage, in the order in which they
        take it over while it is vacant. Only their postings are believed."""
        if (stage, beacon) not in self._candidates:
            found = stewards.first(self.members.values(), stage, beacon)
            self._candidates[stage, beacon] = found
        return self._candidates[stage, beacon]

    def holders(self, stage: Stage) -> frozenset[PeerId]:
        """Return the peers that serve or fetch a stage, with either seat."""
        return self._holders.get(stage, frozenset())

    def serves_without(self, stage: Stage, peer: PeerId) -> bool:
        """Tell whether another member than ``peer`` serves a stage, and does not only fetch it."""
        others = (self.members[p] for p in self.holders(stage) - {peer})
        return any(stage not in member.fetching for member in others)

    # --- one member -----------------------------------------------------------------------------

    def rate(self, peer: PeerId, stage: Stage) -> int:
        """Return c_vs of a member, 0 for any other peer."""
        return self.rates(peer)[stage]

    def rates(self, peer: PeerId) -> tuple[int, ...]:
        """Return c_vs of a member for every stage, 0 for any other peer; unmeasured claims are
        capped."""
        return self._rates.get(peer, self._no_rates)

    def download_s(self, peer: PeerId, stage: Stage) -> float:
        """Return the seconds that a member needs to fetch a stage."""
        line = self.members[peer].downlink_bytes_per_s
        return preferences.download_s(self.costs[stage], self._state, line)

    def wish(
        self, peer: PeerId, stage: Stage, *, level: int, fair: int, replicas: int, r: int
    ) -> preferences.Wish:
        """Return u_v(s) of a member, for what serves the stage without it."""
        usual, near = self._sums.by_stage[stage] // max(1, self.able), self.relatives(peer, stage)
        rate = self.rate(peer, stage)
        gain = preferences.gain(rate, usual, level=level, fair=fair, relatives=near)
        return preferences.Wish(replicas < r, gain, preferences.tie(peer, stage))

    def relatives(self, peer: PeerId, stage: Stage) -> int:
        """Return how many earlier relatives of a member hold ``stage``, or will."""
        member = self.members.get(peer)
        if member is None or not member.marks:
            return 0
        if peer not in self._near:
            everybody = self.members.values()
            related = [other for other in everybody if not other.marks.isdisjoint(member.marks)]
            self._near[peer] = held_by_relatives(member, related, len(self.costs))
        return self._near[peer].get(stage, 0)

    def score(self, peer: PeerId, stage: Stage, fair: int) -> int:
        """Return pi_s(v), the score of ``peer`` at ``stage``, for lambda = ``fair``."""
        return preferences.score(peer, stage, rates=self.rates(peer), fair=fair)

    def fits_both(self, peer: PeerId, home: Stage, second: Stage) -> bool:
        """Tell whether ``peer`` has seats and memory for both ``home`` and ``second``."""
        member = self.members[peer]
        needed = self.costs[home].memory_bytes + self.costs[second].memory_bytes
        return member.seats >= 2 and member.memory_bytes >= needed and self.rate(peer, second) > 0

    def averaging(self, peer: PeerId, second: Stage) -> float:
        """Return what averaging a second stage would add to a step of ``peer``, in steps."""
        if self._averaging is None:
            return 0.0
        flops, uplink, downlink = self._believed(self.members[peer])
        line = min(uplink, downlink)
        return self._averaging.added(self.costs[second], line, flops, self.fair_level)

    # --- inside ---------------------------------------------------------------------------------

    def _count_all(self) -> None:
        """Count all members anew: the medians that cap claims changed."""
        self._rates: dict[PeerId, tuple[int, ...]] = {}
        self._sums = Sums(0, 0, self._no_rates)
        self._served = Supply(self._no_rates, (StageLevel(0),) * len(self.costs), 1)
        for member in self.members.values():
            self._add(member)

    def _add(self, member: Member) -> None:
        """Count a member, with its rates by the present medians."""
        self._rates[member.peer] = rates = self._rates_of(member)
        self._count(member, rates, 1)

    def _count(self, member: Member, rates: Sequence[int], sign: int) -> None:
        """Add a member to the sums, or (-1) subtract it."""
        self._sums = self._sums.plus(rates, sign)
        home, second = member.home_stage, member.second
        if home is None or home not in self.stages or not member.may_decide:
            return
        held = [home]
        if second is not None and second in self.stages and abs(second - home) == 1:
            held.append(second)
        self._served = self._served.after(held, rates, sign=sign)
        for coming in (member.fetching & member.held) - {home, second}:  # it moves there
            if coming in self.stages:
                self._served = self._served.after((coming,), rates, sign=sign)

    def _rates_of(self, member: Member) -> tuple[int, ...]:
        speed, memory_bytes = self._believed(member), member.memory_bytes
        by_kind = [preferences.rate(speed, memory_bytes, cost) for cost in self._kinds]
        barred = member.ineligible
        return tuple(0 if s in barred else by_kind[kind] for s, kind in enumerate(self._kind_of))

    def _index(self, before: Member | None, after: Member | None) -> None:
        """Update the holders of every stage."""
        if before is not None:
            for stage in before.held:
                self._holders[stage] = self.holders(stage) - {before.peer}
        if after is not None:
            for stage in after.held:
                self._holders[stage] = self.holders(stage) | {after.peer}

    def _believed(self, member: Member) -> preferences.Speed:
        """Cap unmeasured claims at twice the median of the swarm."""
        if member.measured_s >= MEASURED_S:
            return member.claim
        flops, uplink, downlink = self._medians
        own = member.claim
        return (min(own[0], 2 * flops), min(own[1], 2 * uplink), min(own[2], 2 * downlink))


def of_nobody(manifest: Manifest) -> Population:
    """Return a manifest's population without members."""
    redundancy = manifest.policy.redundancy
    averaging = Averaging.of(manifest)
    return Population((), manifest.stages, redundancy, manifest.state, averaging)


def _claims_after(
    claims: Sequence[list[float]], gone: Iterable[Member], come: Iterable[Member]
) -> list[list[float]]:
    """Return each claim of all members, ascending, after some went and others came."""
    after = [list(column) for column in claims]
    for member in gone:
        for column, value in zip(after, member.claim, strict=True):
            del column[bisect_left(column, value)]
    for member in come:
        for column, value in zip(after, member.claim, strict=True):
            insort(column, value)
    return after


def _medians(claims: Sequence[list[float]]) -> tuple[float, ...]:
    """Return the median of each claim, the lower of two, hardly rounded."""
    return tuple(coarse(column[(len(column) - 1) // 2]) if column else 0.0 for column in claims)
