"""The members that a peer sees, and the matching's numbers derived from their claims.

Immutable after construction except for caches; ``evolve`` derives the next view at a cost
proportional to the change. Equal views give equal numbers on every machine, whatever their history.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Generic, TypeVar

from model_zoo.specs.state import ADAMW_STATE, StateSpec
from protocol.ids import PeerId, Stage
from protocol.manifest import Manifest, StageCost
from protocol.matching import preferences, stewards
from protocol.matching.averaging import Averaging
from protocol.matching.design import FULL, Design
from protocol.matching.member import Member
from protocol.matching.relatives import held_by_relatives
from protocol.matching.timing import MEASURED_S

__all__ = ["Member", "Population", "of_nobody"]

Claims = tuple[float, float, float]

THIN_REPLICAS = 4
"""With fewer members per stage than 2 r = 4 a single volunteer decides whether a stage is covered,
so all members that can hold two stages do, not only the faster ones."""


Value = TypeVar("Value", float, tuple[int, int])

STEPS_PER_OCTAVE = 16


class Column(Generic[Value]):
    """An immutable sorted multiset: medians and quantiles at the cost of one insertion."""

    __slots__ = ("_sorted",)

    def __init__(self, values: Iterable[Value]) -> None:
        self._sorted: list[Value] = sorted(values)

    def replaced(self, gone: Sequence[Value], come: Sequence[Value]) -> Column[Value]:
        """Return a copy without ``gone``, all of which must be present, and with ``come``."""
        column: Column[Value] = Column(())
        column._sorted = values = self._sorted.copy()
        for value in gone:
            del values[bisect_left(values, value)]
        for value in come:
            insort(values, value)
        return column

    def lower_median(self) -> Value | None:
        """Return the median, the lower of two; None if the column is empty."""
        return self._sorted[(len(self._sorted) - 1) // 2] if self._sorted else None

    def nth_largest(self, count: int) -> Value:
        """Return the ``count``-th largest value (the smallest if there are fewer)."""
        return self._sorted[max(0, len(self._sorted) - count)]


def coarse(value: float | None) -> float:
    """Round down to a sixteenth of the power of two below, so that most changes of a population do
    not change its median."""
    if value is None or not 0 < value < math.inf:
        return value if value == math.inf else 0.0
    mantissa, exponent = math.frexp(value)
    steps = 2 * STEPS_PER_OCTAVE
    return float(math.ldexp(math.floor(mantissa * steps) / steps, exponent))


class Population:
    """A view of the swarm's live members under one manifest's stage costs.

    Args:
        members: the live members.
        costs: cost of a microbatch in every stage.
        redundancy: replicas that each stage should have (r).
        design: the ingredients in force.
        state: layout of a stage's state, which a newcomer downloads.
        averaging: of the run; None: it costs nothing.
    """

    def __init__(
        self,
        members: Iterable[Member],
        costs: Sequence[StageCost],
        redundancy: int,
        design: Design = FULL,
        state: StateSpec = ADAMW_STATE,
        averaging: Averaging | None = None,
    ) -> None:
        self.members: Mapping[PeerId, Member] = {member.peer: member for member in members}
        self.costs = tuple(costs)
        self.design = design
        self._state, self._averaging = state, averaging
        self._redundancy = redundancy
        self._kinds = tuple(dict.fromkeys(self.costs))
        """Distinct costs; most stages of a model cost the same."""
        self._kind_of = tuple(self._kinds.index(cost) for cost in self.costs)
        self._shortlist = stewards.Shortlist()
        self._holders: dict[Stage, frozenset[PeerId]] = {}
        self._marked: dict[str, frozenset[PeerId]] = {}
        """Members by mark."""
        self._near: dict[PeerId, Mapping[Stage, int]] = {}
        for member in self.members.values():
            self._index(None, member)
        claims = [member.claim for member in self.members.values()]
        self._claims = tuple(Column(claim[i] for claim in claims) for i in range(3))
        self._count_rates()

    def evolve(self, changes: Mapping[PeerId, Member | None]) -> Population:
        """Return the view after members came, changed or went (None)."""
        follower = copy(self)
        for name in ("fair_level", "able", "redundancy", "_fast_from"):
            follower.__dict__.pop(name, None)
        members = dict(self.members)
        follower.members, follower._holders = members, dict(self._holders)
        follower._marked, follower._near = dict(self._marked), {}
        before = {peer: members.pop(peer) for peer in changes if peer in members}
        members.update({peer: member for peer, member in changes.items() if member})
        for peer, member in changes.items():
            follower._index(before.get(peer), member)
        follower._shortlist = self._shortlist.after(changes, members)
        gone, come = list(before.values()), [member for member in changes.values() if member]
        follower._claims = tuple(
            column.replaced([m.claim[i] for m in gone], [m.claim[i] for m in come])
            for i, column in enumerate(self._claims)
        )
        follower._recount(self, list(changes), gone, come)
        return follower

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self.members

    # --- the swarm ------------------------------------------------------------------------------

    @property
    def stages(self) -> range:
        """Every stage index."""
        return range(len(self.costs))

    @cached_property
    def fair_level(self) -> int:
        """Lambda: the level of each stage if all members gave their best rate, spread evenly."""
        return self._total // len(self.costs)

    @cached_property
    def able(self) -> int:
        """Members that can serve some stage."""
        return self._able

    @cached_property
    def redundancy(self) -> int:
        """r_eff = min(r, n / S rounded down), at least 1."""
        return max(1, min(self._redundancy, self._able // len(self.costs)))

    def candidates(self, stage: Stage, beacon: int) -> tuple[PeerId, ...]:
        """Return up to three candidates for the stewardship of a stage, in the order in which they
        take it over while it is vacant. Only their postings are believed."""
        return self._shortlist.first(self.members, stage, beacon)

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
        """Return c_vs of a member for every stage; unmeasured claims are capped."""
        if peer not in self.members:
            return (0,) * len(self.costs)
        if peer not in self._rates:
            self._rates[peer] = self._rates_of(self.members[peer])
        return self._rates[peer]

    def phi(self, peer: PeerId, stage: Stage) -> int:
        """Return the share of its session that a member would serve."""
        member = self.members[peer]
        if stage in member.held:
            return preferences.MICRO
        return self._phis_of(member)[self._kind_of[stage]]

    def download_s(self, peer: PeerId, stage: Stage) -> float:
        """Return the seconds that a member needs to fetch a stage, 0 if it holds the stage."""
        member = self.members[peer]
        if stage in member.held:
            return 0.0
        return preferences.download_s(self.costs[stage], self._state, member.downlink_bytes_per_s)

    def wish(
        self,
        peer: PeerId,
        stage: Stage,
        *,
        level: int,
        fair: int,
        replicas: int,
        r: int,
    ) -> preferences.Wish:
        """Return u_v(s), a member's utility of a stage.

        Args:
            peer: the member.
            stage: the stage.
            level: summed rate of the stage without the member.
            fair: lambda.
            replicas: of the stage without the member.
            r: replicas that every stage should have.
        """
        return preferences.wish(
            peer,
            stage,
            rate=self.rate(peer, stage),
            usual=self._totals[self._kind_of[stage]] // max(1, self.able),
            phi=self.phi(peer, stage),
            level=level,
            fair=fair,
            replicas=replicas,
            r=r if self.design.urgency else 0,
            relatives=self.relatives(peer, stage),
        )

    def relatives(self, peer: PeerId, stage: Stage) -> int:
        """Return how many earlier relatives of a member hold ``stage``, or will."""
        member = self.members.get(peer)
        if member is None or not member.marks:
            return 0
        if peer not in self._near:
            found = frozenset[PeerId]().union(*(self._marked[mark] for mark in member.marks))
            related = (self.members[p] for p in found if p in self.members)
            self._near[peer] = held_by_relatives(member, related, len(self.costs))
        return self._near[peer].get(stage, 0)

    def score(self, peer: PeerId, stage: Stage, fair: int) -> int:
        """Return pi_s(v), the score of ``peer`` at ``stage``, for lambda = ``fair``."""
        if peer not in self._values:
            self._values[peer] = tuple(
                rate * self.phi(peer, Stage(s)) for s, rate in enumerate(self.rates(peer))
            )
        return preferences.score(
            peer,
            stage,
            values=self._values[peer] if self.design.advantage else (),
            rate=self.rate(peer, stage),
            phi=self.phi(peer, stage),
            fair=fair,
        )

    def is_fast(self, peer: PeerId) -> bool:
        """Tell whether a member should hold a second stage: the faster ones do, in a thin swarm
        all."""
        return peer in self.members and self._speed(peer) >= self._fast_from

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

    def _count_rates(self) -> None:
        """Recompute all members' rates, after the medians that cap claims changed."""
        self._medians = _medians(self._claims)
        self._rates: dict[PeerId, tuple[int, ...]] = {}
        self._values: dict[PeerId, tuple[int, ...]] = {}
        self._phis: dict[PeerId, tuple[int, ...]] = {}
        speeds = [self._speed(peer) for peer in self.members]
        self._speeds = Column(speeds)
        self._total = sum(speed[0] for speed in speeds)
        self._able = sum(speed[0] > 0 for speed in speeds)
        by_kind = [self._rates_by_kind(member) for member in self.members.values()]
        self._totals = [sum(rates[k] for rates in by_kind) for k in range(len(self._kinds))]

    def _recount(
        self, before: Population, changed: list[PeerId], gone: list[Member], come: list[Member]
    ) -> None:
        """Recompute the rates of changed members, or of all if the medians changed."""
        if _medians(self._claims) != before._medians:
            self._count_rates()
            return
        self._rates, self._values = dict(before._rates), dict(before._values)
        self._phis = dict(before._phis)
        old = [before._speed(member.peer) for member in gone]
        for peer in changed:
            self._rates.pop(peer, None)
            self._values.pop(peer, None)
            self._phis.pop(peer, None)
        new = [self._speed(member.peer) for member in come]
        self._speeds = before._speeds.replaced(old, new)
        arrived = [self._rates_by_kind(member) for member in come]
        departed = [self._rates_by_kind(member) for member in gone]
        self._totals = [
            total + sum(rates[k] for rates in arrived) - sum(rates[k] for rates in departed)
            for k, total in enumerate(before._totals)
        ]
        self._total = before._total + sum(s[0] for s in new) - sum(s[0] for s in old)
        self._able = before._able + sum(s[0] > 0 for s in new) - sum(s[0] > 0 for s in old)

    def _speed(self, peer: PeerId) -> tuple[int, int]:
        """Return a member's best rate, with a tie-breaker."""
        return (max(self.rates(peer)), preferences.tie(peer, Stage(0)))

    @cached_property
    def _fast_from(self) -> tuple[int, int]:
        thin = self._able < THIN_REPLICAS * len(self.costs)
        percent = 100 if thin else self.design.dual_share_percent
        count = -(-len(self.members) * percent // 100)
        return self._speeds.nth_largest(count) if count else (preferences.MAX_RATE + 1, 0)

    def _index(self, before: Member | None, after: Member | None) -> None:
        """Update the holders of every stage."""
        old = before.held if before else frozenset[Stage]()
        new = after.held if after else frozenset[Stage]()
        for stage in old - new:
            self._holders[stage] = self.holders(stage) - {before.peer} if before else frozenset()
        for stage in new - old:
            self._holders[stage] = self.holders(stage) | {after.peer} if after else frozenset()
        for mark in before.marks if before else ():
            self._marked[mark] = self._marked[mark] - {before.peer} if before else frozenset()
        for mark in after.marks if after else ():
            known = self._marked.get(mark, frozenset())
            self._marked[mark] = known | {after.peer} if after else known

    def _believed(self, member: Member) -> Claims:
        """Cap unmeasured claims at twice the median of the swarm."""
        if member.measured_s >= MEASURED_S:
            return member.claim
        flops, uplink, downlink = self._medians
        own = member.claim
        return (min(own[0], 2 * flops), min(own[1], 2 * uplink), min(own[2], 2 * downlink))

    def _rates_of(self, member: Member) -> tuple[int, ...]:
        by_kind, barred = self._rates_by_kind(member), member.ineligible
        return tuple(0 if s in barred else by_kind[k] for s, k in enumerate(self._kind_of))

    def _rates_by_kind(self, member: Member) -> list[int]:
        flops, uplink, downlink = self._believed(member)
        return [
            preferences.rate(
                flops=flops,
                uplink_bytes_per_s=uplink,
                downlink_bytes_per_s=downlink,
                memory_bytes=member.memory_bytes,
                cost=cost,
            )
            for cost in self._kinds
        ]

    def _phis_of(self, member: Member) -> tuple[int, ...]:
        """Return phi of every kind of stage that the member does not hold."""
        if member.peer not in self._phis:
            downloads = (
                preferences.download_s(cost, self._state, member.downlink_bytes_per_s)
                for cost in self._kinds
            )
            self._phis[member.peer] = tuple(
                preferences.phi(download_s=wait_s, session_s=member.session_s)
                for wait_s in downloads
            )
        return self._phis[member.peer]


def of_nobody(manifest: Manifest, design: Design) -> Population:
    """Return a manifest's population without members."""
    redundancy = manifest.policy.redundancy
    averaging = Averaging.of(manifest)
    return Population((), manifest.stages, redundancy, design, manifest.state, averaging)


def _medians(claims: tuple[Column[float], ...]) -> tuple[float, ...]:
    return tuple(coarse(column.lower_median()) for column in claims)
