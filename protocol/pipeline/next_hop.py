"""Next-hop choice: each microbatch goes to the replica that is expected to finish it first.

After SWARM (arXiv 2301.11913, section 3.2), with two differences. First, the load of a replica is
its work in flight (join the shortest expected delay), not all work ever sent there: if a volunteer
is slow, or spends time on another stage, its work does not come back and the next microbatches go
elsewhere. Second, a microbatch is charged with the replica's own time, 1 / rate, if that is known:
the time until its gradient comes back is mostly that of the stages behind, which is the same for a
fast replica and a slow one. Timeouts count against a replica, and repeated ones suspend it. A
replica that refuses work is left alone for a moment, as long as another one is free.

A replica that we reach through a relay only counts as busier than it is. So it gets what those that
we reach directly cannot take soon, and a relay's line, which others need, too, carries less. We
know ourselves whether a link is relayed; if all are, they are alike.

A rate is the replica's own claim. It counts up to a few times the usual rate, and only as long as
work comes back. The time to wait for a replica is measured (``timing``). Newcomers get a bounded
share of what is sent, however fast they are, as long as another replica is open (``newcomers``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_low

from protocol.ids import PeerId, rank
from protocol.pipeline.holding import BUSY_RETRY_MAX_S, BUSY_RETRY_S, Holder
from protocol.pipeline.newcomers import NOBODY, Bound
from protocol.pipeline.timing import GRADIENT, RECEIPT, Timing, answer_s, wait_s

TRUST_ALPHA = 0.1
TIMEOUT_FACTOR = 2.0
"""A timeout doubles the expected time: the replica's share halves until it proves itself."""
MAX_CAUTION = 8.0
SUSPEND_AFTER_STRIKES = 3
SUSPEND_S = 30.0
MAX_TIMES_USUAL = 4.0
"""A rate above so many times the median of its stage's replicas counts as that."""
MAX_TOLD = 64
"""A longer queue than that is not believed."""

MUCH_SLOWER = 3.0
"""A replica that takes so many times as long as another one is not as fast as it says."""
FORGET_S = 30.0
"""Half of what a replica took longer is forgotten after so long without a microbatch."""
RELAYED_MORE = 3.0
"""A replica that we reach through a relay only counts as if it had so many microbatches more."""
LATELY = 1024
"""Choices of which newcomers get a bounded share; then each counts half."""
_Open = tuple[float, bytes, PeerId]
LEAST_RATE = 1e-6
"""Lower bound of a believed rate: a microbatch would take twelve days."""


@dataclass(slots=True)
class _Candidate:
    gradient: Timing
    """Receipt to gradient, as measured here."""
    receipt: Timing = field(default_factory=Timing)
    """Sending to receipt."""
    rate: float = 0.0
    """Microbatches per second, as it says; 0: not known."""
    sampled_at: float = float("-inf")
    load_s: float = 0.0
    """Its time for the work that it has of us, in seconds."""
    charged: int = 0
    """Number of microbatches that it has of us."""
    others_s: float = 0.0
    """Its time for the work that it has of others, in seconds, as of its last receipt."""
    told_at: float = 0.0
    caution: float = 1.0
    """Timeouts multiply what is expected of it."""
    strikes: int = 0
    struck_at: float = float("-inf")
    brought_at: float = float("-inf")
    suspended_until: float = 0.0
    pause_s: float = BUSY_RETRY_S
    """How long it is left alone after its next refusal."""
    rests_until: float = 0.0
    chosen: int = 0
    """How often it was chosen lately."""

    @property
    def service_s(self) -> float:
        """Its time for one microbatch."""
        return self.caution * (1 / self.rate if self.rate else self.gradient.mean_s)

    def load_at(self, now: float) -> float:
        """Its time for all that it has, as far as we know, in seconds."""
        return self.load_s + max(0.0, self.others_s - (now - self.told_at))


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
        self._leaving: frozenset[PeerId] = frozenset()
        self._bound = NOBODY
        self._relayed: frozenset[PeerId] = frozenset()

    def relayed(self, peers: Collection[PeerId]) -> None:
        """We reach these through a relay only, by our own links."""
        self._relayed = frozenset(peers)

    def bound(self, newcomers: Bound) -> None:
        """These are newcomers of the stage, which get a bounded share."""
        self._bound = newcomers

    def avoid(self, leaving: Iterable[PeerId]) -> None:
        """These replicas drain: they get no work as long as another one stays."""
        self._leaving = frozenset(leaving)

    def update(self, rates: Mapping[PeerId, float]) -> None:
        """Make these the live replicas, with microbatches per second as they say.

        If one of them has not said yet, the measured times of all count, which compare.
        """
        for gone in self._candidates.keys() - rates.keys():
            del self._candidates[gone]
        known = [c.gradient.mean_s for c in self._candidates.values()]
        hop_s = sum(known) / len(known) if known else self._default_hop_s
        believed = believed_rates(rates)
        for peer in rates:
            if peer not in self._candidates:
                self._candidates[peer] = _Candidate(Timing(mean_s=hop_s))
            self._candidates[peer].rate = believed.get(peer, 0.0)

    # --- choosing --------------------------------------------------------------------------

    def choose(self, now: float, exclude: Collection[PeerId] = ()) -> tuple[PeerId, float] | None:
        """Return the replica that is expected to be done first and what it is charged, or None.

        The charge is to be given back, by ``release``, once the work is done or taken away.
        """
        floors = self._floors(now)
        open_to = [
            (
                c.load_at(now)
                + max(c.service_s, floors.get(peer, 0.0))
                + (RELAYED_MORE * c.service_s if peer in self._relayed else 0.0),
                rank(peer, round(c.load_s, 3)),
                peer,
            )
            for peer, c in self._candidates.items()
            if peer not in exclude and self._is_open(peer, now)
        ]
        if not open_to:
            return None
        peer = min(self._within_share(open_to))[2]
        self._candidates[peer].chosen += 1
        if sum(c.chosen for c in self._candidates.values()) >= LATELY:
            for candidate in self._candidates.values():
                candidate.chosen //= 2
        return peer, self.charge(peer)

    def _within_share(self, open_to: list[_Open]) -> list[_Open]:
        """Leave out newcomers that have had their share of what was sent lately."""
        if not self._bound.named:
            return open_to
        had = {peer: c.chosen for peer, c in self._candidates.items()}
        of = sum(had.values()) + 1
        return [one for one in open_to if self._bound.allows(one[2], had, of)] or open_to

    def _floors(self, now: float) -> dict[PeerId, float]:
        """Return the least time that a microbatch takes at replicas that need much longer for it
        than another, whatever they say of their rate: what they need more than that one, for the
        stages behind are the same. It is forgotten slowly, so that each is tried again."""
        measured = {p: c for p, c in self._candidates.items() if c.gradient.measured}
        if len(measured) < 2:
            return {}
        best = min(measured.values(), key=lambda c: c.gradient.mean_s)
        usual_s = best.gradient.mean_s
        return {
            peer: best.service_s
            + (c.gradient.mean_s - usual_s) * math.exp2((c.sampled_at - now) / FORGET_S)
            for peer, c in measured.items()
            if c.gradient.mean_s > MUCH_SLOWER * usual_s
        }

    def _is_open(self, peer: PeerId, now: float) -> bool:
        """Whether it stays and is not suspended; if no candidate does, any will do."""
        return self._is_fine(peer, now) or not any(self._is_fine(p, now) for p in self._candidates)

    def _is_fine(self, peer: PeerId, now: float) -> bool:
        return peer not in self._leaving and self._candidates[peer].suspended_until <= now

    def charge(self, peer: PeerId) -> float:
        """Charge a replica with one microbatch and return how much that is, in its seconds."""
        candidate = self._candidates[peer]
        charge_s = candidate.service_s
        candidate.load_s += charge_s
        candidate.charged += 1
        return charge_s

    def release(self, peer: PeerId, charge_s: float) -> None:
        """Take back a charge: the replica does not have the microbatch any more."""
        if candidate := self._candidates.get(peer):
            candidate.load_s = max(0.0, candidate.load_s - charge_s)
            candidate.charged = max(0, candidate.charged - 1)

    def charged(self, peer: PeerId) -> int:
        """Return how many of our microbatches a replica has."""
        candidate = self._candidates.get(peer)
        return candidate.charged if candidate else 0

    def resting(self, now: float) -> frozenset[PeerId]:
        """Return the replicas that have refused work a moment ago."""
        return frozenset(p for p, c in self._candidates.items() if c.rests_until > now)

    def untried(self) -> frozenset[PeerId]:
        """Return the replicas that have not shown yet how long they take."""
        return frozenset(p for p, c in self._candidates.items() if not c.gradient.measured)

    def idle(self, now: float) -> list[PeerId]:
        """Return the replicas that have none of our microbatches and are known to work, fastest
        first."""
        found = [
            (c.caution * c.gradient.mean_s, peer)
            for peer, c in self._candidates.items()
            if not c.charged and not c.strikes and c.gradient.measured and self._is_fine(peer, now)
        ]
        return [peer for _, peer in sorted(found)]

    # --- learning --------------------------------------------------------------------------

    def settle(self, peer: PeerId, seconds: float, queue: int = 1, now: float = 0.0) -> None:
        """Note the time a microbatch took at ``peer``.

        Args:
            peer: the replica.
            seconds: from receipt to gradient.
            queue: microbatches before it, itself included.
            now: monotonic seconds.
        """
        if candidate := self._candidates.get(peer):
            candidate.gradient.note(seconds, queue)
            candidate.caution += TRUST_ALPHA * (1 - candidate.caution)
            candidate.strikes = 0
            candidate.sampled_at = now

    def acknowledged(self, peer: PeerId, seconds: float, queue: int) -> None:
        """Note that ``peer``'s receipt took ``seconds``, with ``queue`` microbatches in flight."""
        if candidate := self._candidates.get(peer):
            candidate.receipt.note(seconds, queue)
            candidate.pause_s, candidate.rests_until = BUSY_RETRY_S, 0.0

    def refused(self, peer: PeerId, now: float) -> None:
        """Note that ``peer`` has refused work: it is left alone, for twice as long each time.

        Refusals of what was sent to it before the pause began change nothing.
        """
        candidate = self._candidates.get(peer)
        if candidate is not None and candidate.rests_until <= now:
            candidate.rests_until = now + candidate.pause_s
            candidate.pause_s = min(2 * candidate.pause_s, BUSY_RETRY_MAX_S)

    def told(self, peer: PeerId, queue: int, now: float) -> None:
        """Note at ``now`` that ``queue`` forwards, ours and others', wait at ``peer``.

        Without a rate it is ignored, because measured times include such waits already.
        """
        candidate = self._candidates.get(peer)
        if candidate is not None and candidate.rate:
            waits_s = min(queue, MAX_TOLD) / candidate.rate
            candidate.others_s = max(0.0, waits_s - candidate.load_s)
            candidate.told_at = now

    def learn(self, holders: Iterable[Holder], bringer: PeerId, now: float) -> None:
        """Learn from a first gradient, brought by ``bringer`` at ``now``, about its ``holders``;
        after Karn, only from holders that had no predecessor."""
        for holder in holders:
            if holder.held_since is None or not holder.alone:
                continue
            took_s = now - holder.held_since
            if holder.peer == bringer:
                self.settle(bringer, took_s, holder.queue, now)
            elif candidate := self._candidates.get(holder.peer):
                candidate.gradient.at_least(took_s, holder.queue)
                candidate.sampled_at = now

    def brought(self, peer: PeerId, now: float) -> None:
        """Some gradient has come from there."""
        if candidate := self._candidates.get(peer):
            candidate.brought_at = now

    def timed_out(self, peer: PeerId, now: float, sent_at: float = float("inf")) -> bool:
        """Count a missed deadline against ``peer`` at ``now``, unless the microbatch was sent
        (``sent_at``) before the last counted one."""
        candidate = self._candidates.get(peer)
        if candidate is None or sent_at <= candidate.struck_at:
            return False
        candidate.caution = min(MAX_CAUTION, candidate.caution * TIMEOUT_FACTOR)
        candidate.struck_at = now
        candidate.strikes += 1
        if candidate.strikes >= SUSPEND_AFTER_STRIKES:
            candidate.suspended_until = now + SUSPEND_S
            candidate.strikes = 0
        return True

    # --- expecting -------------------------------------------------------------------------

    def answer_s(self, peer: PeerId) -> float:
        """Return how long ``peer`` may take to say that it is there."""
        return answer_s(self._of(peer).receipt)

    def receipt_wait_s(self, peer: PeerId, queue: int) -> float:
        """Return how long to wait for a receipt before asking whether ``peer`` is there."""
        siblings = [c.receipt for other, c in self._candidates.items() if other != peer]
        return wait_s(self._of(peer).receipt, siblings, RECEIPT, queue)

    def gradient_wait_s(self, peer: PeerId, queue: int) -> float:
        """Return how long to wait for a gradient before asking whether ``peer`` is there."""
        siblings = [c.gradient for other, c in self._candidates.items() if other != peer]
        return wait_s(self._of(peer).gradient, siblings, GRADIENT, queue)

    def timing(self, peer: PeerId) -> Timing:
        """Return what is known of the time from receipt to gradient."""
        return self._of(peer).gradient

    def expected_s(self, peer: PeerId) -> float:
        """Return the expected seconds from receipt to gradient at ``peer``."""
        candidate = self._candidates.get(peer)
        return candidate.caution * candidate.gradient.mean_s if candidate else self._default_hop_s

    def brought_and_expected(self) -> tuple[dict[PeerId, float], dict[PeerId, float]]:
        """Return by replica when a gradient came last and, where measured, how long one takes."""
        known = self._candidates.items()
        brought = {peer: c.brought_at for peer, c in known}
        return brought, {peer: c.gradient.mean_s for peer, c in known if c.gradient.measured}

    def slower(self) -> dict[PeerId, float]:
        """Return by replica how many times slower than the fastest it says that it is."""
        rates = {peer: c.rate for peer, c in self._candidates.items() if c.rate}
        return {peer: max(rates.values()) / rate for peer, rate in rates.items()}

    def brought_at(self, peer: PeerId) -> float:
        """Return when a gradient came from there last, in monotonic seconds."""
        return self._of(peer).brought_at

    def _of(self, peer: PeerId) -> _Candidate:
        return self._candidates.get(peer) or _Candidate(Timing(mean_s=self._default_hop_s))

    def __len__(self) -> int:
        return len(self._candidates)
