"""Second leases: near the end of a step an idle replica of stage 0 runs what another is late with.

Holds when what was leased and how long replicas take from lease to ledger, as their reports show it
(a report may be a second old, for all replicas alike). Decides with ``backups``; leases nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from protocol.ids import PeerId, short
from protocol.pipeline.backups import (
    BackupBudget,
    Due,
    allowance,
    first_due,
    slower_at,
)
from protocol.pipeline.leases import LeaseBook
from protocol.pipeline.timing import Timing

MAX_TIMINGS = 1024


class HasLedger(Protocol):
    """The part of a ledger report used here."""

    @property
    def done(self) -> frozenset[int]:
        """Ids counted."""

    @property
    def in_flight(self) -> frozenset[int]:
        """Ids held and not counted yet."""


@dataclass(slots=True)
class _Lease:
    """One that is not known to be done."""

    peer: PeerId
    at: float
    queue: int
    """How many its holder had then, this one included."""
    whole: bool = True
    """Seen from its beginning, so that its end is worth a sample."""


@dataclass(frozen=True, slots=True)
class SecondLease(Due):
    """A microbatch that another replica is to run as well."""

    microbatch: int
    holder: PeerId
    since: float
    peer: PeerId

    def words(self, now: float) -> str:
        """Say why."""
        return (
            f"microbatch {self.microbatch}: {short(self.holder)} has had it for "
            f"{now - self.since:.1f} s; {short(self.peer)} has nothing left of this step "
            "and gets it too"
        )


class SecondLeases:
    """The leader's view of the leases in flight."""

    def __init__(self, per_step: int) -> None:
        self.budget = BackupBudget(allowance(per_step, 1))
        self._timings: dict[PeerId, Timing] = {}
        self.start_step()

    def start_step(self) -> None:
        """Nothing is out; what was measured of replicas stands."""
        self._out: dict[int, _Lease] = {}
        self._doubled: dict[int, PeerId] = {}
        self._heard: dict[PeerId, HasLedger] = {}

    def granted(self, peer: PeerId, ids: Iterable[int], now: float, *, whole: bool = True) -> None:
        """Note leases.

        Args:
            peer: the replica that got them.
            ids: microbatches, in order.
            now: monotonic seconds.
            whole: False if an earlier leader granted them, at an unknown time.
        """
        queue = sum(lease.peer == peer for lease in self._out.values())
        for position, microbatch in enumerate(ids, 1):
            self._out[microbatch] = _Lease(peer, now, queue + position, whole)

    def doubled(self, second: SecondLease) -> None:
        """A second lease was given."""
        self.budget.spend()
        self._doubled[second.microbatch] = second.peer

    def released(self, peer: PeerId) -> None:
        """A replica died."""
        self._out = {m: lease for m, lease in self._out.items() if lease.peer != peer}

    def hear(self, reports: Mapping[PeerId, HasLedger], now: float) -> None:
        """Look at what replicas have reported since the last time."""
        for peer, report in reports.items():
            if self._heard.get(peer) is report:
                continue
            self._heard[peer] = report
            for microbatch in report.done & self._out.keys():
                self._settle(self._out.pop(microbatch), peer, microbatch, now)

    def _settle(self, lease: _Lease, by: PeerId, microbatch: int, now: float) -> None:
        timing = self._timings.setdefault(lease.peer, Timing())
        if lease.peer != by:
            timing.at_least(now - lease.at, lease.queue)
        elif lease.whole and microbatch not in self._doubled:
            timing.note(now - lease.at, lease.queue)
        while len(self._timings) > MAX_TIMINGS:
            del self._timings[next(iter(self._timings))]

    def next(self, book: LeaseBook, step: int, now: float) -> SecondLease | None:
        """Return the next second lease of ``step`` by ``book`` at ``now``, or None."""
        if book.free or not self._out or not self.budget.left(step):
            return None
        idle = [(t.expected_s(), peer) for peer in book.waiting() if (t := self._idle(peer))]
        if not idle:
            return None
        peer = min(idle)[1]
        by_holder: dict[PeerId, list[SecondLease]] = {}
        for microbatch, lease in self._out.items():
            if microbatch not in self._doubled and lease.peer != peer:
                at = self._due(lease, peer, now)
                second = SecondLease(at, microbatch, lease.peer, lease.at, peer)
                by_holder.setdefault(lease.peer, []).append(second)
        return first_due(by_holder, lambda second: (second.since, second.microbatch))

    def _due(self, lease: _Lease, peer: PeerId, now: float) -> float:
        held = self._timings.get(lease.peer) or Timing()
        return slower_at(held, lease.queue, lease.at, self._timings[peer], now)

    def _idle(self, peer: PeerId) -> Timing | None:
        """Return how long a replica takes if it has nothing to do and that is known."""
        timing, report = self._timings.get(peer), self._heard.get(peer)
        busy = any(peer in (held.peer, self._doubled.get(m)) for m, held in self._out.items())
        if timing is None or not timing.measured or busy or report is None or report.in_flight:
            return None
        return timing
