"""Next-hop choice: every microbatch to the replica that is expected to have it done first.

After SWARM (arXiv 2301.11913, section 3.2), with two differences. What counts is the work that is
under way at a replica (join the shortest expected delay), not all that was ever sent there: time
that a volunteer gives to another stage, or a slow moment, shows as work that does not come back,
and the next microbatches go elsewhere. And a microbatch is charged with the replica's own time for
it, 1 / rate, where that is known: the time until its gradient comes back is mostly that of the
stages behind it, the same for a fast replica and a slow one. Timeouts count against a replica, and
repeated ones suspend it.

A rate is the replica's own word. It counts up to a few times the usual one, and only as long as the
work comes back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median_low

from protocol.ids import PeerId, rank

EMA_ALPHA = 0.1
TIMEOUT_FACTOR = 2.0
"""A timeout doubles the expected time: the replica's share halves until it proves itself."""
SUSPEND_AFTER_STRIKES = 3
SUSPEND_S = 30.0
MAX_TIMES_USUAL = 4.0
"""A rate above so many times the median of its stage's replicas counts as that."""

LEAST_RATE = 1e-6
"""Nobody is slower: a microbatch would take twelve days."""


@dataclass(slots=True)
class _Candidate:
    hop_s: float
    """Receipt to gradient, as measured here."""
    rate: float = 0.0
    """Microbatches per second, as it says; 0: not known."""
    load_s: float = 0.0
    """Its time for what it has of ours."""
    caution: float = 1.0
    """Timeouts multiply what is expected of it."""
    strikes: int = 0
    suspended_until: float = 0.0

    @property
    def service_s(self) -> float:
        """Its time for one microbatch."""
        return self.caution * (1 / self.rate if self.rate else self.hop_s)


def believed_rates(rates: Mapping[PeerId, float]) -> dict[PeerId, float]:
    """Return what a stage's replicas say of their speed, within bounds; empty until all say one."""
    if not rates or not all(rate > 0 for rate in rates.values()):
        return {}
    most = MAX_TIMES_USUAL * median_low(rates.values())
    return {peer: max(LEAST_RATE, min(rate, most)) for peer, rate in rates.items()}


class NextHop:
    """Chooses among the replicas of one stage; holds a clock-free account per replica."""

    def __init__(self, default_hop_s: float = 1.0) -> None:
        self._default_hop_s = default_hop_s
        self._candidates: dict[PeerId, _Candidate] = {}

    def update(self, rates: Mapping[PeerId, float]) -> None:
        """Make these the live replicas, with microbatches per second as they say.

        If one of them has not said yet, the measured times of all count, which compare.
        """
        for gone in self._candidates.keys() - rates.keys():
            del self._candidates[gone]
        known = [c.hop_s for c in self._candidates.values()]
        hop_s = sum(known) / len(known) if known else self._default_hop_s
        believed = believed_rates(rates)
        for peer in rates:
            candidate = self._candidates.setdefault(peer, _Candidate(hop_s))
            candidate.rate = believed.get(peer, 0.0)

    def choose(self, now: float, exclude: Collection[PeerId] = ()) -> tuple[PeerId, float] | None:
        """Return the replica that is expected to be done first and what it is charged, or None.

        The charge is to be given back, by ``release``, once the work is done or taken away.
        """
        open_to = [
            (c.load_s + c.service_s, rank(peer, round(c.load_s, 3)), peer)
            for peer, c in self._candidates.items()
            if peer not in exclude and c.suspended_until <= now
        ]
        if not open_to:
            return None
        peer = min(open_to)[2]
        candidate = self._candidates[peer]
        charge_s = candidate.service_s
        candidate.load_s += charge_s
        return peer, charge_s

    def release(self, peer: PeerId, charge_s: float) -> None:
        """Take back a charge: the replica does not have the microbatch any more."""
        if candidate := self._candidates.get(peer):
            candidate.load_s = max(0.0, candidate.load_s - charge_s)

    def settle(self, peer: PeerId, seconds: float) -> None:
        """Learn how long a microbatch really took there (receipt to gradient)."""
        if candidate := self._candidates.get(peer):
            candidate.hop_s += EMA_ALPHA * (max(seconds, 1e-4) - candidate.hop_s)
            candidate.caution += EMA_ALPHA * (1 - candidate.caution)
            candidate.strikes = 0

    def timed_out(self, peer: PeerId, now: float) -> None:
        """Count a missed deadline against a replica."""
        if candidate := self._candidates.get(peer):
            candidate.caution *= TIMEOUT_FACTOR
            candidate.strikes += 1
            if candidate.strikes >= SUSPEND_AFTER_STRIKES:
                candidate.suspended_until = now + SUSPEND_S
                candidate.strikes = 0

    def expected_s(self, peer: PeerId) -> float:
        """Return the expected seconds from receipt to gradient at ``peer``."""
        candidate = self._candidates.get(peer)
        return candidate.caution * candidate.hop_s if candidate else self._default_hop_s

    def __len__(self) -> int:
        return len(self._candidates)
