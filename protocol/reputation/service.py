"""How fast partners really serve: microbatches per second of every replica next to us.

What is measured is *delivered work over time while the stage had work waiting*, one step at a time.
A step's duration is the time between two versions of the stage, and its microbatches are shared out
by the ledger (a sibling reads the plan that was committed, in which every id counts once) or, from
the stages before and after, by who sent us the gradients and activations of that step. Of an idle
stage nothing is learnt: its step is as long as the slowest stage makes it, whatever its replicas
can do. That a stage was backlogged is read from the queues in its replicas' heartbeats, *the other
replicas'* where there are any, so that a slow peer cannot hide behind an empty queue of its own;
and a stage cannot have been the one to wait for while we, next to it, had a queue ourselves.

Why not time single microbatches: a gradient comes back when all later stages are done with it, so
the time from receipt to gradient says little about the replica in between. Why not its own word:
that is what is to be checked.

State per stage: the step under way and one account per replica. No clock, no messages; the versions
and queues that are heard are claims, and none of them can do more than void a measurement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_low
from typing import Final

from protocol.ids import PeerId
from protocol.reputation.account import Account
from protocol.wire.messages import Plan
from protocol.wire.parts import SeatStatus

MAX_STEP_S: Final = 900.0
"""A step that took longer was held up by something else than its replicas' speed."""

BACKLOGGED_SHARE: Final = 0.5
"""Share of heartbeats that must speak of a queue."""

STALE_S: Final = 1800.0
"""What was last measured so long ago is not told any more."""

MAX_ACCOUNTS: Final = 256


@dataclass(slots=True)
class _Step:
    """One step of one stage, as far as we saw it."""

    step: int
    began: float | None
    """Monotonic seconds; None if we did not see it begin."""
    present: frozenset[PeerId]
    """Replicas that served when it began."""
    heard: Counter[PeerId] = field(default_factory=Counter)
    queued: Counter[PeerId] = field(default_factory=Counter)
    """Heartbeats of this step by replica, and those that spoke of a queue."""


@dataclass(slots=True)
class _Stage:
    seats: dict[PeerId, SeatStatus] = field(default_factory=dict)
    now: _Step | None = None
    brought: dict[int, dict[int, PeerId]] = field(default_factory=dict)
    """step -> microbatch -> which replica sent us its gradient or activation."""
    plans: dict[tuple[int, PeerId], tuple[int, dict[PeerId, int]]] = field(default_factory=dict)
    """(step, leader) -> attempt and microbatches counted for each member, of the newest plan."""
    we_queued: bool = False
    """Whether our own seat here had a queue in the last step."""


class ServiceMeter:
    """Measures the replicas of our stages and of those next to them."""

    def __init__(self, own: PeerId, per_step: int) -> None:
        self._own, self._per_step = own, per_step
        self._stages: dict[int, _Stage] = {}
        self._accounts: dict[tuple[PeerId, int], Account] = {}

    def heard(self, peer: PeerId, seats: Iterable[SeatStatus], now: float) -> None:
        """Take the seats of a heartbeat, our own ones (for our own id) included."""
        serving = {seat.stage: seat for seat in seats if seat.state == "serving"}
        for index, stage in self._stages.items():
            if index not in serving:
                self._left(stage, peer)
        for index, seat in serving.items():
            stage = self._stages.setdefault(index, _Stage())
            stage.seats[peer] = seat
            self._follow(index, stage, now)
            step = stage.now
            if step is not None and seat.version == step.step:
                step.heard[peer] += 1
                step.queued[peer] += seat.queue > 0

    def brought(self, peer: PeerId, stage: int, step: int, microbatch: int) -> None:
        """A replica of ``stage`` sent us the gradient or the activation of a microbatch."""
        known = self._stages.get(stage)
        if known is None or known.now is None or peer not in known.seats:
            return
        if step in (known.now.step, known.now.step + 1) and microbatch // self._per_step == step:
            known.brought.setdefault(step, {})[microbatch] = peer

    def planned(self, leader: PeerId, plan: Plan) -> None:
        """A plan of one of our stages, sent or received; counts once its attempt is committed."""
        known = self._stages.get(plan.stage)
        if known is None or known.now is None:
            return
        if plan.step not in (known.now.step, known.now.step + 1):
            return
        counts = {PeerId(member.peer): _ones(member.counted) for member in plan.members}
        if sum(counts.values()) == self._per_step and leader in known.seats:
            known.plans[plan.step, leader] = plan.attempt, counts

    def gone(self, peer: PeerId) -> None:
        """A peer left or died; what was measured of it stays for a while."""
        for stage in self._stages.values():
            self._left(stage, peer)

    def accounts(self, now: float) -> Mapping[tuple[PeerId, int], Account]:
        """Return what is known by (peer, stage); forgets what is too old."""
        self._accounts = {
            key: account
            for key, account in self._accounts.items()
            if now - account.newest <= STALE_S
        }
        return self._accounts

    # --- inside ------------------------------------------------------------------------------

    def _left(self, stage: _Stage, peer: PeerId) -> None:
        stage.seats.pop(peer, None)
        if peer == self._own:
            stage.we_queued = False

    def _follow(self, index: int, stage: _Stage, now: float) -> None:
        """Begin a step when the stage has reached it; settle the one before."""
        version, before = self._version(stage), stage.now
        if before is not None and version <= before.step:
            return
        seen = before is not None and version == before.step + 1
        if before is not None and seen:
            self._settle(index, stage, before, now)
        stage.now = _Step(version, now if seen else None, frozenset(stage.seats))
        stage.plans = {key: found for key, found in stage.plans.items() if key[0] >= version}
        stage.brought = {s: ids for s, ids in stage.brought.items() if s >= version}

    def _version(self, stage: _Stage) -> int:
        """Our own seat's version if we have one there, else what most replicas have reached: one
        that announces a version far ahead must not end the measuring."""
        own = stage.seats.get(self._own)
        if own is not None:
            return own.version
        return median_low(seat.version for seat in stage.seats.values())

    def _settle(self, index: int, stage: _Stage, step: _Step, now: float) -> None:
        heard = step.heard[self._own]
        stage.we_queued = heard > 0 and step.queued[self._own] >= BACKLOGGED_SHARE * heard
        if step.began is None or not 0 < now - step.began <= MAX_STEP_S:
            return
        shares = self._shares(stage, step)
        if not shares or self._waited_for_us(index):
            return
        for peer in step.present & stage.seats.keys() - {self._own}:
            if self._backlogged(step, peer):
                account = self._account(peer, index)
                if account is not None:
                    work = shares.get(peer, 0.0) * self._per_step
                    account.add(work, now - step.began, now)

    def _account(self, peer: PeerId, stage: int) -> Account | None:
        known = self._accounts.get((peer, stage))
        if known is None and len(self._accounts) < MAX_ACCOUNTS:
            known = self._accounts[peer, stage] = Account()
        return known

    def _shares(self, stage: _Stage, step: _Step) -> dict[PeerId, float]:
        """Return every replica's share of a step: by the ledger, by what came to us, or empty."""
        if len(step.present) == 1:
            return dict.fromkeys(step.present, 1.0)
        attempts = {seat.attempt for seat in stage.seats.values() if seat.version == step.step + 1}
        ledgers = [
            counts
            for (of, _leader), (attempt, counts) in stage.plans.items()
            if of == step.step and attempt in attempts
        ]
        if len(ledgers) == 1:  # two plans under one attempt: somebody lies, neither counts
            return {peer: count / self._per_step for peer, count in ledgers[0].items()}
        if self._own in step.present:
            return {}  # what we did ourselves came over no link
        brought = Counter(stage.brought.get(step.step, {}).values())
        total = sum(brought.values())
        return {peer: count / total for peer, count in brought.items()} if total else {}

    def _backlogged(self, step: _Step, peer: PeerId) -> bool:
        others = [other for other in step.heard if other != peer] or [peer]
        heard = sum(step.heard[other] for other in others)
        queued = sum(step.queued[other] for other in others)
        return heard > 0 and queued >= BACKLOGGED_SHARE * heard

    def _waited_for_us(self, index: int) -> bool:
        """Whether our own seat in another stage had a queue: then that one was the slow one."""
        return any(stage.we_queued for other, stage in self._stages.items() if other != index)


def _ones(bitmap: bytes) -> int:
    return int.from_bytes(bitmap, "little").bit_count()
