"""The members a peer sees, and what the matching reads from their claims.

Immutable after construction except for caches. Equal views give equal numbers on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median_low

from protocol.ids import PeerId, Stage
from protocol.manifest import StageCost
from protocol.matching import preferences
from protocol.matching.timing import MAX_SESSION_S, MEASURED_S


@dataclass(frozen=True, slots=True)
class Member:
    """A live member with its capacity claims (its advert, corrected by partners' measurements)."""

    peer: PeerId
    joined_at: float
    """Unix seconds."""
    flops: float
    uplink_bytes_per_s: float
    downlink_bytes_per_s: float
    memory_bytes: float
    held: frozenset[Stage] = frozenset()
    """Stages it serves or fetches."""
    measured_s: float = 0.0
    """How long partners have measured it; claims are capped at 2 x median before 5 minutes."""
    session_s: float = MAX_SESSION_S
    """Expected rest of its session."""
    ineligible: frozenset[Stage] = frozenset()
    """Stages it says it cannot serve."""


class Population:
    """A view of the swarm's live members under one manifest's stage costs."""

    def __init__(
        self, members: Iterable[Member], costs: Sequence[StageCost], redundancy: int
    ) -> None:
        self.members = {member.peer: member for member in members}
        self.costs = tuple(costs)
        self._redundancy = redundancy
        self._rates: dict[PeerId, tuple[int, ...]] = {}
        self._values: dict[PeerId, tuple[int, ...]] = {}

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self.members

    @property
    def stages(self) -> range:
        """Every stage index."""
        return range(len(self.costs))

    @cached_property
    def fair_level(self) -> int:
        """Lambda: the level of every stage if each member gave its best rate, spread evenly."""
        return sum(max(self.rates(peer)) for peer in self.members) // len(self.costs)

    @cached_property
    def able(self) -> int:
        """Members that can serve some stage."""
        return sum(any(self.rates(peer)) for peer in self.members)

    @cached_property
    def redundancy(self) -> int:
        """r_eff = min(r, n / S rounded down), at least 1."""
        return max(1, min(self._redundancy, self.able // len(self.costs)))

    def rate(self, peer: PeerId, stage: Stage) -> int:
        """Return c_vs of a member, 0 for a peer that is none."""
        return self.rates(peer)[stage]

    def rates(self, peer: PeerId) -> tuple[int, ...]:
        """Return c_vs of a member for every stage, claims capped until measured."""
        if peer not in self.members:
            return (0,) * len(self.costs)
        if peer not in self._rates:
            self._rates[peer] = self._rates_of(self._believed(self.members[peer]))
        return self._rates[peer]

    def phi(self, peer: PeerId, stage: Stage) -> int:
        """Return the share of its session a member would spend serving, or the bonus of holding."""
        member = self.members[peer]
        return preferences.phi(
            held=stage in member.held,
            download_s=self.download_s(peer, stage),
            session_s=member.session_s,
        )

    def download_s(self, peer: PeerId, stage: Stage) -> float:
        """Return the seconds a member needs to fetch a stage, 0 if it holds it."""
        member = self.members[peer]
        if stage in member.held:
            return 0.0
        return preferences.download_s(self.costs[stage], member.downlink_bytes_per_s)

    def score(self, peer: PeerId, stage: Stage, fair: int) -> int:
        """Return pi_s(v) of a member at a given lambda."""
        if peer not in self._values:
            self._values[peer] = tuple(
                rate * self.phi(peer, Stage(s)) for s, rate in enumerate(self.rates(peer))
            )
        return preferences.score(
            peer,
            stage,
            values=self._values[peer],
            rate=self.rate(peer, stage),
            phi=self.phi(peer, stage),
            fair=fair,
        )

    @cached_property
    def _medians(self) -> tuple[float, float, float]:
        members = self.members.values()
        return (
            median_low([member.flops for member in members]),
            median_low([member.uplink_bytes_per_s for member in members]),
            median_low([member.downlink_bytes_per_s for member in members]),
        )

    def _believed(self, member: Member) -> Member:
        """Cap unmeasured claims at twice the median of the swarm."""
        if member.measured_s >= MEASURED_S:
            return member
        flops, uplink, downlink = self._medians
        return replace(
            member,
            flops=min(member.flops, 2 * flops),
            uplink_bytes_per_s=min(member.uplink_bytes_per_s, 2 * uplink),
            downlink_bytes_per_s=min(member.downlink_bytes_per_s, 2 * downlink),
        )

    def _rates_of(self, member: Member) -> tuple[int, ...]:
        return tuple(
            0
            if stage in member.ineligible
            else preferences.rate(
                flops=member.flops,
                uplink_bytes_per_s=member.uplink_bytes_per_s,
                downlink_bytes_per_s=member.downlink_bytes_per_s,
                memory_bytes=member.memory_bytes,
                cost=cost,
            )
            for stage, cost in enumerate(self.costs)
        )
