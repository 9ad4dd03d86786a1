"""The lease server at the leader of stage 0, across steps and changes of leader.

A leader that leads a step from its start knows that nothing is leased yet. One that takes over
later waits until every live replica has reported its counted and held microbatches.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.ids import PeerId
from protocol.pipeline.leases import LeaseBook
from protocol.pipeline.newcomers import NOBODY
from protocol.pipeline.second_leases import HasLedger, SecondLease, SecondLeases

STRAY_S = 10.0
"""A leased id that no replica reports for so long is leased again: the lease was lost."""
HOLD_S = 20.0
"""Work that newcomers may not have waits so long for others, since one of those did anything."""


class LeaseServer:
    """Owns the ``LeaseBook`` of the current step; requests may come a step early.

    Args:
        step: the step whose ids it leases.
        per_step: microbatches per step.
    """

    def __init__(self, step: int, per_step: int) -> None:
        self._per_step = per_step
        self._early: dict[PeerId, int] = {}
        self.step = step
        self._book = LeaseBook(self._ids())
        self._fresh = False
        self._changed_at: float | None = None
        self._heard: dict[PeerId, HasLedger] = {}
        self._second: SecondLease | None = None
        self.seconds = SecondLeases(per_step)
        self.bound = NOBODY
        """What newcomers of the stage may have."""
        self._taken_at: float | None = None
        """When one that is no newcomer took or did something last; None: nobody has asked yet."""

    def start_step(self, step: int, *, fresh: bool) -> None:
        """Begin a step; ``fresh`` if we lead it from the start."""
        self.step, self._fresh, self._changed_at = step, fresh, None
        self._book, self._second = LeaseBook(self._ids()), None
        self.seconds.start_step()
        self._heard, self._taken_at = {}, None
        early, self._early = self._early, {}
        for peer, want in early.items():
            self._book.ask(peer, want)

    def take_over(self) -> None:
        """We have become the leader in the middle of a step: rely on reports only."""
        self._fresh = False

    def ask(self, peer: PeerId, step: int, want: int, held: int | None = None) -> None:
        """Note a request for work.

        Leases beyond ``held`` are still in flight to the peer and count as part of ``want``.

        Args:
            peer: the replica that asks.
            step: the step.
            want: microbatches that it can take.
            held: microbatches of the step that it has; None: unknown.
        """
        if step == self.step:
            under_way = 0 if held is None else max(0, self._book.held(peer) - held)
            if want > under_way:
                self._book.ask(peer, want - under_way)
            else:
                self._book.forget(peer)
        elif step == self.step + 1:
            self._early[peer] = want

    def release(self, peer: PeerId, reports: Mapping[PeerId, HasLedger]) -> None:
        """A replica died: what it held is free, unless a survivor holds it too."""
        self._book.release(peer)
        self.seconds.released(peer)
        self._early.pop(peer, None)
        self._claim({other: report for other, report in reports.items() if other != peer})

    def grant(
        self, reports: Mapping[PeerId, HasLedger], at_step: set[PeerId], now: float
    ) -> list[tuple[PeerId, bool, list[int]]]:
        """Lease free microbatches to replicas that asked; see ``LeaseBook.grant``.

        Args:
            reports: newest ledger report of each replica.
            at_step: live replicas of this step.
            now: monotonic seconds.
        """
        if not self._fresh:
            if not at_step or at_step - reports.keys():
                return []
            self._book.reclaim(frozenset())  # what we leased when we led before may have moved on
            self._claim(reports)
            for peer, report in reports.items():
                self.seconds.granted(peer, report.in_flight, now, whole=False)
            self._book.taken_over()
            self._fresh = True
        self._note_others(reports, now)
        self._hear(reports)
        self.seconds.hear(reports, now)
        granted = self._grant(now)
        for peer, _, ids in granted:
            self.seconds.granted(peer, ids, now)
        if granted or self._changed_at is None:
            self._changed_at = now
        return granted

    def _grant(self, now: float) -> list[tuple[PeerId, bool, list[int]]]:
        """Lease what is free: newcomers get what they may have, and the rest if for a while nobody
        else has taken anything or has done anything."""
        of = self.bound
        if not of.named:
            return self._book.grant()
        granted = self._book.grant(lambda peer, held: of.allows(peer, held, self._per_step))
        if self._taken_at is None or any(peer not in of.named for peer, _, _ in granted):
            self._taken_at = now
        if now >= self._taken_at + HOLD_S:
            granted += self._book.grant()
        return granted

    def _note_others(self, reports: Mapping[PeerId, HasLedger], now: float) -> None:
        for peer, report in reports.items():
            if peer not in self.bound.named and self._heard.get(peer) is not report:
                before = self._heard.get(peer)
                if before is None or before.done != report.done:
                    self._taken_at = now

    def grant_second(self, now: float) -> SecondLease | None:
        """Lease a late microbatch to another replica as well, if one is due."""
        second = self._second = self.seconds.next(self._book, self.step, now)
        if second is None or second.at > now:
            return None
        self._book.double(second.microbatch, second.peer)
        self.seconds.doubled(second)
        self._second = self.seconds.next(self._book, self.step, now)
        return second

    def tick(self, reports: Mapping[PeerId, HasLedger], now: float) -> None:
        """Free ids that were leased a while ago and that none of the ``reports``, the newest of
        each replica, names at ``now``."""
        if self._changed_at is None or now < self._changed_at + STRAY_S:
            return
        self._changed_at = now
        known = frozenset().union(*(r.done | r.in_flight for r in reports.values()))
        self._book.reclaim(known)

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        if self._changed_at is None:
            return None
        due = [self._changed_at + STRAY_S]
        if self._second:
            due.append(self._second.at)
        held_back = self._book.free and self._book.waiting()
        if self.bound.named and self._taken_at is not None and held_back:
            due.append(self._taken_at + HOLD_S)
        return min(due)

    def _hear(self, reports: Mapping[PeerId, HasLedger]) -> None:
        """Free microbatches that a replica no longer reports, having left them to another replica,
        if that one is dead."""
        for peer, report in reports.items():
            before, self._heard[peer] = self._heard.get(peer), report
            if before is None or before is report:
                continue
            for microbatch in (before.done | before.in_flight) - report.done - report.in_flight:
                if self._book.holder(microbatch) == peer:
                    others = (p for p, r in reports.items() if microbatch in r.done | r.in_flight)
                    self._book.hand_over(microbatch, next(others, None))

    def _claim(self, reports: Mapping[PeerId, HasLedger]) -> None:
        for peer, report in reports.items():
            self._book.claim(peer, report.done | report.in_flight)

    def _ids(self) -> range:
        first = self.step * self._per_step
        return range(first, first + self._per_step)
