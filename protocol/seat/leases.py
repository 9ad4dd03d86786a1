"""Leases: the leader of stage 0 hands out a step's microbatches to the replicas that ask.

Work pulling: a fast replica asks more often, so speed decides the share. An id is free if no live
replica reports it and no lease of it is on its way. So a replica that dies, gives an id up or loses
a lease needs no rule of its own, nor does a leader that takes over in mid-step: what it leases a
second time is subtracted like any double.
"""

import math
from collections.abc import Collection, Mapping
from functools import reduce
from operator import or_

from protocol.effects import Send
from protocol.ids import PeerId
from protocol.pace import LOST_S
from protocol.pipeline.newcomers import NOBODY
from protocol.pipeline.timing import UNMEASURED_S
from protocol.rounds.reports import Report
from protocol.wire.messages import Lease, LeaseRequest

Reports = Mapping[PeerId, Report]
Bits = dict[PeerId, int]
"""Microbatches of the step by replica; bit i is the i-th one."""


class Leases:
    """Those of the current step; requests may come a step early.

    Args:
        step: the step whose ids are leased.
        per_step: microbatches per step.
    """

    def __init__(self, step: int, per_step: int) -> None:
        self._per_step, self._all = per_step, (1 << per_step) - 1
        self._early: dict[PeerId, int] = {}
        self.bound = NOBODY
        """What newcomers of the stage may have."""
        self.start_step(step)

    def start_step(self, step: int) -> None:
        """Begin a step of which nothing is leased yet."""
        self.step = step
        self._wants, self._early = self._early, {}
        self._sent: Bits = {}
        """What was leased, and is not reported yet."""
        self._older: Bits = {}
        """The same that was leased before the last look for lost leases."""
        self._look_at: float | None = None
        """For those."""
        self._free, self._once = self._all, 0
        """What may be leased, and what somebody has had."""
        self._has: dict[PeerId, int] = {}
        """How many each has, with those on their way to it."""
        self._counted: Bits = {}
        """The ledger that each has reported last."""
        self._active_at: float | None = None
        """When one that is no newcomer took or did something last; None: nobody has asked yet."""

    def take_over(self) -> None:
        """We lead the step from now on: rely on what is reported."""
        self._sent, self._older, self._has, self._once = {}, {}, {}, self._all

    def ask(self, peer: PeerId, message: LeaseRequest, now: float) -> list[Send]:
        """Note a request for work; it replaces an earlier one. Leases beyond what the peer holds
        are still on their way to it, and count as part of what it wants."""
        if message.step == self.step + 1:
            self._early[peer] = message.want
        elif message.step == self.step:
            self._wants.pop(peer, None)
            if (left := message.want - max(0, self._has.get(peer, 0) - message.held)) > 0:
                self._wants[peer] = left
        return []

    def grant(self, reports: Reports, live: Collection[PeerId], now: float) -> list[Send]:
        """Lease what is free to replicas that asked, in turn.

        Args:
            reports: newest ledger report of each replica.
            live: replicas of the stage.
            now: monotonic seconds.
        """
        self._wants = {peer: want for peer, want in self._wants.items() if peer in live}
        if self._look_at is None or now >= self._look_at:
            self._look_at = now + LOST_S
            self._sent, self._older = {}, self._sent  # what is older was lost
        held = {peer: report.held for peer, report in reports.items() if peer in live}
        self._sent, self._older = (
            {p: left for p, bits in way.items() if p in live and (left := bits & ~held.get(p, 0))}
            for way in (self._sent, self._older)
        )
        for peer in held:
            counted = reports[peer].bits
            if peer not in self.bound.named and counted != self._counted.get(peer):
                self._active_at = now
            self._counted[peer] = counted
        for way in (self._sent, self._older):
            held |= {peer: held.get(peer, 0) | bits for peer, bits in way.items()}
        self._has = {peer: bits.bit_count() for peer, bits in held.items()}
        taken = reduce(or_, held.values(), 0)
        self._once |= taken
        self._free = self._all & ~taken
        return self._hand_out(now)

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
            if (want := self._wants.pop(peer)) > 1:
                self._wants[peer] = want - 1  # for the next one it waits behind the others
            oldest = self._free & -self._free
            self._free ^= oldest
            self._sent[peer] = self._sent.get(peer, 0) | oldest
            self._has[peer] = self._has.get(peer, 0) + 1
            microbatch = self.step * self._per_step + oldest.bit_length() - 1
            granted.setdefault((peer, bool(self._once & oldest)), []).append(microbatch)
            self._once |= oldest
        return [Send(to, Lease(self.step, ids, again)) for (to, again), ids in granted.items()]
