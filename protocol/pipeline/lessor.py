"""Handing out leases at the leader of stage 0, across steps and changes of leader.

A leader that leads a step from its start knows that nothing is leased yet. One that takes over in
the middle waits until every live replica has reported what it has done and holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from protocol.ids import PeerId
from protocol.pipeline.leases import LeaseBook

STRAY_S = 10.0
"""A leased id that no replica reports for so long is leased again: the lease was lost."""


class HasLedger(Protocol):
    """What a ledger report says."""

    @property
    def done(self) -> frozenset[int]:
        """Ids counted."""

    @property
    def in_flight(self) -> frozenset[int]:
        """Ids held and not counted yet."""


class Lessor:
    """Owns the ``LeaseBook`` of the current step; requests may come a step early."""

    def __init__(self, step: int, per_step: int) -> None:
        self._per_step = per_step
        self._early: dict[PeerId, int] = {}
        self._step = step
        self._book = LeaseBook(self._ids())
        self._fresh = False
        self._changed_at: float | None = None

    def start_step(self, step: int, *, fresh: bool) -> None:
        """Begin a step; ``fresh`` if we lead it from the start."""
        self._step, self._fresh, self._changed_at = step, fresh, None
        self._book = LeaseBook(self._ids())
        early, self._early = self._early, {}
        for peer, want in early.items():
            self._book.ask(peer, want)

    def take_over(self) -> None:
        """We have become the leader in the middle of a step: rely on reports only."""
        self._fresh = False

    def ask(self, peer: PeerId, step: int, want: int) -> None:
        """Note a request for work."""
        if step == self._step:
            self._book.ask(peer, want)
        elif step == self._step + 1:
            self._early[peer] = want

    def release(self, peer: PeerId, reports: Mapping[PeerId, HasLedger]) -> None:
        """A replica died: what it held is free, unless a survivor holds it too."""
        self._book.release(peer)
        self._claim(reports)

    def grant(
        self, reports: Mapping[PeerId, HasLedger], at_step: set[PeerId], now: float
    ) -> list[tuple[PeerId, bool, list[int]]]:
        """Lease what is free to those that asked; see ``LeaseBook.grant``."""
        if not self._fresh:
            if not at_step or at_step - reports.keys():
                return []
            self._claim(reports)
            self._book.taken_over()
            self._fresh = True
        granted = self._book.grant()
        if granted or self._changed_at is None:
            self._changed_at = now
        return granted

    def tick(self, reports: Mapping[PeerId, HasLedger], now: float) -> None:
        """Free ids that nobody reports although they were leased a while ago."""
        if self._changed_at is None or now < self._changed_at + STRAY_S:
            return
        self._changed_at = now
        known = frozenset().union(*(r.done | r.in_flight for r in reports.values()))
        self._book.reclaim(known)

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        return None if self._changed_at is None else self._changed_at + STRAY_S

    def _claim(self, reports: Mapping[PeerId, HasLedger]) -> None:
        for peer, report in reports.items():
            self._book.claim(peer, report.done | report.in_flight)

    def _ids(self) -> range:
        first = self._step * self._per_step
        return range(first, first + self._per_step)
