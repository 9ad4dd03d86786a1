"""Leases: the leader of stage 0 hands out a step's microbatches to the replicas that ask.

Work pulling: a fast replica asks more often, so speed decides the share. An id is free if no live
replica reports it and no lease of it is on its way. So a replica that dies, gives an id up or loses
a lease needs no rule of its own, nor does a leader that takes over in mid-step: what it leases a
second time is subtracted like any double.
"""

import math
from bisect import insort
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from protocol.effects import Send
from protocol.ids import PeerId
from protocol.pace import LOST_S
from protocol.pipeline.newcomers import NOBODY
from protocol.pipeline.timing import UNMEASURED_S
from protocol.rounds.reports import Report
from protocol.wire.messages import Lease, LeaseRequest

Reports = Mapping[PeerId, Report]


@dataclass(slots=True)
class _Held:
    """A microbatch that a replica has, since when, and whether it says so."""

    peer: PeerId
    at: float
    reported: bool = False


class Leases:
    """Those of the current step; requests may come a step early.

    Args:
        step: the step whose ids are leased.
        per_step: microbatches per step.
    """

    def __init__(self, step: int, per_step: int) -> None:
        self._per_step = per_step
        self._early: dict[PeerId, int] = {}
        self.bound = NOBODY
        """What newcomers of the stage may have."""
        self.start_step(step)

    def start_step(self, step: int) -> None:
        """Begin a step of which nothing is leased yet."""
        self.step = step
        self._wants, self._early = self._early, {}
        self._clear()
        self._active_at: float | None = None
        """When one that is no newcomer took or did something last; None: nobody has asked yet."""

    def take_over(self) -> None:
        """We lead the step from now on: rely on what is reported."""
        self._clear()
        self._again.update(self._free)

    def _clear(self) -> None:
        first = self.step * self._per_step
        self._free = list(range(first + self._per_step - 1, first - 1, -1))
        """Taken from the end: the oldest first."""
        self._again = set[int]()
        self._held: dict[int, _Held] = {}
        self._has = Counter[PeerId]()
        """How many of them each has."""
        self._heard: dict[PeerId, Report] = {}
        self._look_at: float | None = None
        """For strays."""

    # --- requests and grants ---------------------------------------------------------------

    def ask(self, peer: PeerId, message: LeaseRequest, now: float) -> list[Send]:
        """Note a request for work; it replaces an earlier one. Leases beyond what the peer holds
        are still on their way to it, and count as part of what it wants."""
        if message.step == self.step + 1:
            self._early[peer] = message.want
        elif message.step == self.step:
            self._wants.pop(peer, None)
            if (left := message.want - max(0, self._has[peer] - message.held)) > 0:
                self._wants[peer] = left
        return []

    def grant(self, reports: Reports, live: Collection[PeerId], now: float) -> list[Send]:
        """Lease what is free to replicas that asked, in turn.

        Args:
            reports: newest ledger report of each replica.
            live: replicas of the stage.
            now: monotonic seconds.
        """
        self._hear({peer: report for peer, report in reports.items() if peer in live}, live, now)
        if self._look_at is None or now >= self._look_at:
            self._look_at = now + LOST_S
            for m, held in list(self._held.items()):
                if not held.reported and now >= held.at + LOST_S:
                    self._lose(m)  # the lease was lost
        return self._hand_out(now)

    def next_deadline(self) -> float | None:
        """Return when ``grant`` has something to do though nothing is heard."""
        held_back = bool(self.bound.named and self._free and self._wants)
        due = [
            self._look_at,
            self._active_at + UNMEASURED_S if held_back and self._active_at is not None else None,
        ]
        return min((at for at in due if at is not None), default=None)

    def _hand_out(self, now: float) -> list[Send]:
        """Lease what is free, one id per asker in turn. Newcomers get what they may have, and the
        rest if for a while nobody else has taken anything or has done anything."""
        if self._active_at is None and self._wants:
            self._active_at = now
        bound, granted = self.bound, dict[tuple[PeerId, bool], list[int]]()
        held_back_until = math.inf if self._active_at is None else self._active_at + UNMEASURED_S
        bounded = bool(bound.named) and now < held_back_until
        while self._free:
            may = (p for p in self._wants if bound.allows(p, self._has, self._per_step))
            peer = next(may if bounded else iter(self._wants), None)
            if peer is None:
                break
            if peer not in bound.named:
                self._active_at = now
            microbatch = self._free.pop()
            if (want := self._wants.pop(peer)) > 1:
                self._wants[peer] = want - 1  # for the next one it waits behind the others
            self._hold(microbatch, peer, now)
            granted.setdefault((peer, microbatch in self._again), []).append(microbatch)
        return [Send(to, Lease(self.step, ids, again)) for (to, again), ids in granted.items()]

    def _hold(self, microbatch: int, peer: PeerId, now: float, *, reported: bool = False) -> None:
        self._held[microbatch] = _Held(peer, now, reported)
        self._has[peer] += 1

    # --- reports ---------------------------------------------------------------------------

    def _hear(self, reports: Reports, live: Collection[PeerId], now: float) -> None:
        """Take what replicas have reported since the last time, and who is gone."""
        for peer, report in reports.items():
            if (before := self._heard.get(peer)) is not report:
                self._heard[peer] = report
                self._compare(peer, before, report, now)
        gone = (self._heard.keys() | self._wants.keys() | self._has.keys()).difference(live)
        for peer in gone:
            self._heard.pop(peer, None)
            self._wants.pop(peer, None)
        if gone:
            for m in [m for m, held in self._held.items() if held.peer in gone]:
                self._lose(m)
            for peer in gone:
                del self._has[peer]

    def _compare(self, peer: PeerId, before: Report | None, report: Report, now: float) -> None:
        has = report.done | report.in_flight
        if taken := has - self._held.keys():
            self._free = [m for m in self._free if m not in taken]
            for m in sorted(taken):
                self._hold(m, peer, now)
        for m in has & self._held.keys():
            self._held[m].reported |= self._held[m].peer == peer
        had = before.done | before.in_flight if before else frozenset[int]()
        for m in had - has:
            if (held := self._held.get(m)) is not None and held.peer == peer:
                self._lose(m)
        if peer not in self.bound.named and (before is None or before.done != report.done):
            self._active_at = now

    def _lose(self, microbatch: int) -> None:
        """Its holder has it no more: it is with another one that reports it, else it is free."""
        held = self._held.pop(microbatch)
        self._has[held.peer] -= 1
        for peer, report in self._heard.items():
            if peer != held.peer and (microbatch in report.done or microbatch in report.in_flight):
                self._hold(microbatch, peer, held.at, reported=True)
                return
        self._again.add(microbatch)
        insort(self._free, microbatch, key=lambda m: -m)
