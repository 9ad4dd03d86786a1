"""Leases: the leader of stage 0 hands out a step's microbatches to the replicas that ask.

Work pulling: a fast replica asks more often, so speed decides the share. The replicas' ledger
reports say who has what. An id is free if no live replica reports it and no lease of it is on its
way. A replica that dies, gives an id up or loses a lease therefore needs no rule of its own. Nor
does a leader that takes over in mid-step: it waits a moment for the reports, and what it then
leases a second time is subtracted like any double.

Near the end of a step a replica with nothing left also gets what another one is late with, after
MapReduce (Dean and Ghemawat 2004, section 3.6). It must pay clearly (``MARGIN``), and no more than
a quarter of a step is leased twice, so that it can never feed on itself.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from protocol.effects import Explain, Send
from protocol.ids import PeerId, short
from protocol.pace import ANSWER_S, LOST_S
from protocol.pipeline.newcomers import NOBODY
from protocol.pipeline.timing import UNMEASURED_S, Timing
from protocol.rounds.reports import Report
from protocol.wire.messages import Lease, LeaseRequest

MARGIN: Final = 1.5
"""The predicted rest of the wait must exceed the idle replica's time by this factor."""
SHARE: Final = 4
"""At most one in so many microbatches of a step is leased twice."""


Reports = Mapping[PeerId, Report]


@dataclass(slots=True)
class _Held:
    """A microbatch that a replica has."""

    peer: PeerId
    at: float
    queue: int
    """How many its holder had then, this one included."""
    whole: bool
    """Leased by us, so that its end is worth a sample."""
    reported: bool = False
    also: PeerId | None = None
    """A second replica that runs it too."""


@dataclass(frozen=True, slots=True)
class _Second:
    """A lease to be given to a second replica."""

    at: float
    microbatch: int
    peer: PeerId


class Leases:
    """Those of the current step; requests may come a step early.

    Args:
        step: the step whose ids are leased.
        per_step: microbatches per step.
    """

    def __init__(self, step: int, per_step: int) -> None:
        self._per_step = per_step
        self._early: dict[PeerId, int] = {}
        self._timings: dict[PeerId, Timing] = {}
        """How long replicas take from lease to ledger, as reports show it."""
        self.bound = NOBODY
        """What newcomers of the stage may have."""
        self.start_step(step, leads=False)

    def start_step(self, step: int, *, leads: bool) -> None:
        """Begin a step; whether we lead it from the start, so that nothing is leased yet."""
        self.step = step
        self._wants, self._early = self._early, {}
        self._clear()
        self._whole = leads
        self._active_at: float | None = None
        """When one that is no newcomer took or did something last; None: nobody has asked yet."""

    def take_over(self) -> None:
        """We lead the step from now on: rely on what is reported."""
        self._clear()
        self._whole = False

    def _clear(self) -> None:
        first = self.step * self._per_step
        self._free = list(range(first + self._per_step - 1, first - 1, -1))
        """Taken from the end: the oldest first."""
        self._again = set[int]()
        self._held: dict[int, _Held] = {}
        self._out: dict[int, _Held] = {}
        """Of these the ones that are not known to be done."""
        self._has = Counter[PeerId]()
        """How many of them each has."""
        self._heard: dict[PeerId, Report] = {}
        self._seconds = 0
        self._due: _Second | None = None
        self._waits_until: float | None = None
        """For reports."""
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

    def grant(
        self, reports: Reports, live: Collection[PeerId], here: Collection[PeerId], now: float
    ) -> list[Send | Explain]:
        """Lease what is free to replicas that asked, in turn; near the end also what is late.

        Args:
            reports: newest ledger report of each replica.
            live: replicas of the stage.
            here: those that are at this step.
            now: monotonic seconds.
        """
        self._hear({peer: report for peer, report in reports.items() if peer in live}, live, now)
        if not self._whole and not self._has_heard(here, now):
            return []
        if self._look_at is None or now >= self._look_at:
            self._look_at = now + LOST_S
            for m, held in list(self._held.items()):
                if not held.reported and now >= held.at + LOST_S:
                    self._lose(m)  # the lease was lost
        granted: list[Send | Explain] = [*self._hand_out(now)]
        self._due = self._next_second()
        if self._due is not None and self._due.at <= now:
            granted += self._double(self._due, now)
            self._due = self._next_second()
        return granted

    def next_deadline(self) -> float | None:
        """Return when ``grant`` has something to do though nothing is heard."""
        held_back = bool(self.bound.named and self._free and self._wants)
        due = [
            None if self._whole else self._waits_until,
            self._look_at,
            self._due.at if self._due else None,
            self._active_at + UNMEASURED_S if held_back and self._active_at is not None else None,
        ]
        return min((at for at in due if at is not None), default=None)

    def _has_heard(self, here: Collection[PeerId], now: float) -> bool:
        """Whether we know enough to lease in the place of a leader before us."""
        if not here:
            return False
        if self._waits_until is None:
            self._waits_until = now + ANSWER_S
        if now < self._waits_until and not self._heard.keys() >= set(here):
            return False
        self._whole = True
        self._again.update(self._free)
        return True

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
            self._wanted(peer)
            self._hold(microbatch, peer, now, whole=True)
            granted.setdefault((peer, microbatch in self._again), []).append(microbatch)
        return [Send(to, Lease(self.step, ids, again)) for (to, again), ids in granted.items()]

    def _wanted(self, peer: PeerId) -> None:
        """It gets one of those it has asked for; for the next one it waits behind the others."""
        if (want := self._wants.pop(peer)) > 1:
            self._wants[peer] = want - 1

    def _hold(self, microbatch: int, peer: PeerId, now: float, *, whole: bool) -> _Held:
        queue = 1 + sum(held.peer == peer for held in self._out.values())
        held = self._held[microbatch] = self._out[microbatch] = _Held(peer, now, queue, whole)
        self._has[peer] += 1
        return held

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
            self._timings.pop(peer, None)
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
                self._hold(m, peer, now, whole=False)
        for m in has & self._held.keys():
            self._held[m].reported |= self._held[m].peer == peer
        for m in report.done & self._out.keys():
            self._settle(self._out.pop(m), peer, now)
        had = before.done | before.in_flight if before else frozenset[int]()
        for m in had - has:
            if (held := self._held.get(m)) is not None and held.peer == peer:
                self._lose(m)
        if peer not in self.bound.named and (before is None or before.done != report.done):
            self._active_at = now

    def _settle(self, held: _Held, by: PeerId, now: float) -> None:
        timing = self._timings.setdefault(held.peer, Timing())
        if held.peer != by:
            timing.at_least(now - held.at, held.queue)
        elif held.whole and held.also is None:
            timing.note(now - held.at, held.queue)

    def _lose(self, microbatch: int) -> None:
        """Its holder has it no more: it is with another one that reports it, else it is free."""
        held = self._held.pop(microbatch)
        self._out.pop(microbatch, None)
        self._has[held.peer] -= 1
        for peer, report in self._heard.items():
            done = microbatch in report.done
            if peer != held.peer and (done or microbatch in report.in_flight):
                self._hold(microbatch, peer, held.at, whole=False).reported = True
                if done:
                    del self._out[microbatch]
                return
        self._again.add(microbatch)
        insort(self._free, microbatch, key=lambda m: -m)

    # --- what is late ----------------------------------------------------------------------

    def _next_second(self) -> _Second | None:
        """Return what an idle replica gets as well next. Of one replica's leases this is the last,
        once its first is late: it has already begun the first ones."""
        peer = self._idle()
        if self._free or peer is None or self._seconds >= max(1, self._per_step // SHARE):
            return None
        late: dict[PeerId, _Second] = {}
        for m, held in self._out.items():  # in the order in which they were leased
            if held.also is None and held.peer != peer:
                before, at = late.get(held.peer), self._late_at(held, self._timings[peer])
                late[held.peer] = _Second(min(at, before.at) if before else at, m, peer)
        return min(late.values(), key=lambda second: second.at, default=None)

    def _late_at(self, held: _Held, other: Timing) -> float:
        """Return when a lease is late enough to be given to an idle replica as well: a late one is
        expected to take about as long again, and that must be clearly more than the idle replica
        would need with such a queue. Equally fast replicas wait for the same stages behind them."""
        return held.at + MARGIN * other.expected_s(held.queue)

    def _idle(self) -> PeerId | None:
        """Return the fastest replica that asks, has nothing, and whose times are known."""
        busy = {peer for held in self._out.values() for peer in (held.peer, held.also)}
        found = [
            (timing.expected_s(), peer)
            for peer in self._wants
            if peer not in busy and (timing := self._timings.get(peer)) and timing.measured
            if (report := self._heard.get(peer)) is not None and not report.in_flight
            if self.bound.allows(peer, self._has, self._per_step)
        ]
        return min(found)[1] if found else None

    def _double(self, second: _Second, now: float) -> list[Send | Explain]:
        """Lease what one replica has to another one as well, in place of one of those it asked
        for."""
        microbatch, peer = second.microbatch, second.peer
        held = self._out[microbatch]
        held.also = peer
        self._seconds += 1
        self._wanted(peer)
        words = (
            f"microbatch {microbatch}: {short(held.peer)} has had it for {now - held.at:.1f} s; "
            f"{short(peer)} has nothing left of this step and gets it too"
        )
        lease = Lease(self.step, [microbatch], again=True)
        return [Send(peer, lease), Explain("pipeline", words)]
