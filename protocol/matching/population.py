"""The members that a peer sees, and the matching's numbers derived from their claims.

Immutable after construction except for caches. Equal views give equal numbers on every machine.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from statistics import median_low

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


def coarse(value: float) -> float:
    """Round down to a sixteenth of the power of two below, so that most changes of a population do
    not change its median."""
    if not 0 < value < math.inf:
        return value if value == math.inf else 0.0
    mantissa, exponent = math.frexp(value)
    steps = 2 * STEPS_PER_OCTAVE
    return float(math.ldexp(math.floor(mantissa * steps) / steps, exponent))


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
        self._candidates: dict[tuple[Stage, int], tuple[PeerId, ...]] = {}
        """By stage and beacon."""
        self._near: dict[PeerId, Mapping[Stage, int]] = {}
        self._holders: defaultdict[Stage, set[PeerId]] = defaultdict(set)
        for member in self.members.values():
            for stage in member.held:
                self._holders[stage].add(member.peer)
        claims = zip(*(member.claim for member in self.members.values()), strict=True)
        self._medians = [coarse(median_low(claim)) for claim in claims]
        self._no_rates = (0,) * len(self.costs)
        self._rates = self._all_rates()
        best = [max(rates) for rates in self._rates.values()]
        self.fair_level = sum(best) // len(self.costs)
        """Lambda: the level of each stage if all members gave their best rate, spread evenly."""
        self.able = sum(rate > 0 for rate in best)
        """Members that can serve some stage."""
        self.redundancy = max(1, min(redundancy, self.able // len(self.costs)))
        """r_eff = min(r, n / S rounded down), at least 1."""
        rates = [self._no_rates, *self._rates.values()]
        self._summed = [sum(of_stage) for of_stage in zip(*rates, strict=True)]
        """Rates at every stage."""

    def of(self, members: Iterable[Member]) -> Population:
        """Return the view of other members of the same run."""
        run = self.costs, self._redundancy, self._state, self._averaging
        return Population(members, *run)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self.members

    # --- the swarm ------------------------------------------------------------------------------

    @property
    def stages(self) -> range:
        """Every stage index."""
        return range(len(self.costs))

    @cached_property
    def supply(self) -> Supply:
        """What serves every stage. Members that may not decide do not count: anybody may
        advertise a seat."""
        supply = Supply(self._no_rates, (StageLevel(0),) * len(self.costs), self.redundancy)
        for member in self.members.values():
            home, second = member.home_stage, member.second
            if home is None or home not in self.stages or not member.may_decide:
                continue
            beside = second is not None and second in self.stages and abs(second - home) == 1
            held = [home, second] if second is not None and beside else [home]
            coming = (member.fetching & member.held) - {home, second}  # it moves there
            for stages in (held, *([stage] for stage in coming if stage in self.stages)):
                supply = supply.after(stages, self.rates(member.peer))
        return supply

    def candidates(self, stage: Stage, beacon: int) -> tuple[PeerId, ...]:
        """Return up to three candidates for the stewardship of a stage, in the order in which they
        take it over while it is vacant. Only their postings are believed."""
        if (stage, beacon) not in self._candidates:
            found = stewards.first(self.members.values(), stage, beacon)
            self._candidates[stage, beacon] = found
        return self._candidates[stage, beacon]

    def holders(self, stage: Stage) -> frozenset[PeerId]:
        """Return the peers that serve or fetch a stage, with either seat."""
        return frozenset(self._holders.get(stage, ()))

    def serves_without(self, stage: Stage, peer: PeerId) -> bool:
        """Tell whether another member than ``peer`` serves a stage, and does not only fetch it."""
        others = (self.members[p] for p in self.holders(stage) - {peer})
        return any(stage in member.serving for member in others)

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
        usual, near = self._summed[stage] // max(1, self.able), self.relatives(peer, stage)
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

    def _all_rates(self) -> dict[PeerId, tuple[int, ...]]:
        kinds = tuple(dict.fromkeys(self.costs))  # most stages of a model cost the same
        kind_of = tuple(kinds.index(cost) for cost in self.costs)
        found = {}
        for member in self.members.values():
            speed, barred = self._believed(member), member.ineligible
            by_kind = [preferences.rate(speed, member.memory_bytes, cost) for cost in kinds]
            rates = (0 if s in barred else by_kind[kind] for s, kind in enumerate(kind_of))
            found[member.peer] = tuple(rates)
        return found

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
