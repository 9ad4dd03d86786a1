"""Measures partners' throughput: microbatches per second of every replica near us.

The measure is *delivered work over time while the stage was backlogged*, one step at a time. A
step's duration is the time between two versions of the stage. Its microbatches are attributed by
what was committed (a sibling knows it, and every id counts once) or, seen from the neighbouring
stages, by the sender of each gradient and activation. An idle stage yields no
measurement, because its step takes as long as the slowest stage needs. Backlog is read from the
queues in the replicas' heartbeats, those of the *other* replicas if there are any, so that a slow
peer cannot hide behind an empty queue of its own. A stage was also not the bottleneck if our own
seat next to it had a queue.

Timing single microbatches would not work: a gradient comes back after all later stages, so its
round trip says little about the next replica. A replica's own rate is the claim to be checked.

State per stage: the current step and one account per replica. No clock, no messages. Versions and
queues in heartbeats are only claims; a false one can at most void a measurement.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_low
from typing import Final

from protocol.ids import PeerId
from protocol.pace import LONG_S, SETTLED_S
from protocol.wire.parts import SeatStatus

MAX_STEP_S: Final = LONG_S / 4
"""A longer step was delayed by something other than its replicas' speed."""

BACKLOGGED_SHARE: Final = 0.5
"""Share of heartbeats that must report a queue."""

MAX_ACCOUNTS: Final = 256

HALF_LIFE_S: Final = SETTLED_S
"""Work measured this many measured seconds ago counts half, so that a slowdown shows."""


@dataclass(slots=True)
class Account:
    """A replica's microbatches over seconds, as an exponentially decaying average: add stretches of
    work with ``add``; read ``rate`` and ``measured_s``."""

    amount: float = 0.0
    weight_s: float = 0.0
    """Seconds behind ``amount``, decayed like it."""
    measured_s: float = 0.0
    """Seconds measured in all, not decayed, at most ``LONG_S``."""
    newest: float = 0.0
    """Monotonic seconds of the last stretch."""

    def add(self, amount: float, seconds: float, now: float) -> None:
        """Add ``amount`` of work, done in the ``seconds`` before ``now`` (monotonic seconds)."""
        aged = 0.5 ** (seconds / HALF_LIFE_S)
        self.amount = self.amount * aged + amount
        self.weight_s = self.weight_s * aged + seconds
        self.measured_s = min(LONG_S, self.measured_s + seconds)
        self.newest = now

    @property
    def rate(self) -> float:
        """Microbatches per second, 0 before the first stretch."""
        return self.amount / self.weight_s if self.weight_s > 0 else 0.0


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
    """Heartbeats in this step by replica, and those of them that reported a queue."""


@dataclass(slots=True)
class _Stage:
    seats: dict[PeerId, SeatStatus] = field(default_factory=dict)
    now: _Step | None = None
    brought: dict[int, dict[int, PeerId]] = field(default_factory=dict)
    """step -> microbatch -> the replica that sent us its gradient or activation."""
    we_queued: bool = False
    """Whether our own seat here had a queue in the last step."""


class ServiceMeter:
    """Measures the replicas of our stages and of those next to them; ``now`` is monotonic."""

    def __init__(self, own: PeerId, per_step: int) -> None:
        self._own, self._per_step = own, per_step
        self._stages: dict[int, _Stage] = {}
        self._accounts: dict[tuple[PeerId, int], Account] = {}

    def heard(self, peer: PeerId, seats: Iterable[SeatStatus], now: float) -> None:
        """Take all seats of a heartbeat, or our own."""
        serving = {seat.stage: seat for seat in seats if seat.state == "serving"}
        for index, stage in self._stages.items():
            if index not in serving:
                self._left(stage, peer)
        for index, seat in serving.items():
            stage = self._stages.setdefault(index, _Stage())
            stage.seats[peer] = seat
            if self._own not in stage.seats:
                # a replica that announces a version far ahead must not end the measurement
                version = median_low(seat.version for seat in stage.seats.values())
                self._reach(index, stage, version, {}, now)
            step = stage.now
            if step is not None and seat.version == step.step:
                step.heard[peer] += 1
                step.queued[peer] += seat.queue > 0

    def brought(self, peer: PeerId, stage: int, step: int, microbatch: int) -> None:
        """Note that ``peer``, a replica of ``stage``, sent us the gradient or activation of
        ``microbatch`` in ``step``."""
        known = self._stages.get(stage)
        if known is None or known.now is None or peer not in known.seats:
            return
        if step in (known.now.step, known.now.step + 1) and microbatch // self._per_step == step:
            known.brought.setdefault(step, {})[microbatch] = peer

    def closed(self, stage: int, version: int, shares: Mapping[PeerId, int], now: float) -> None:
        """Note that a stage of ours has made a version, by what was counted for each member."""
        self._reach(stage, self._stages.setdefault(stage, _Stage()), version, shares, now)

    def gone(self, peer: PeerId) -> None:
        """Note that a peer left or died; its measurements stay for a while."""
        for stage in self._stages.values():
            self._left(stage, peer)

    def accounts(self, now: float) -> Mapping[tuple[PeerId, int], Account]:
        """Return the accounts by (peer, stage), after dropping those without a new measurement for
        two of the longest steps."""
        self._accounts = {
            key: account
            for key, account in self._accounts.items()
            if now - account.newest <= 2 * MAX_STEP_S
        }
        return self._accounts

    # --- inside ------------------------------------------------------------------------------

    def _left(self, stage: _Stage, peer: PeerId) -> None:
        stage.seats.pop(peer, None)
        if peer == self._own:
            stage.we_queued = False

    def _reach(
        self, index: int, stage: _Stage, version: int, shares: Mapping[PeerId, int], now: float
    ) -> None:
        """Begin a step when the stage has reached it; evaluate the previous one."""
        before = stage.now
        if before is not None and version <= before.step:
            return
        seen = before is not None and version == before.step + 1
        if before is not None and seen:
            self._settle(index, stage, before, shares, now)
        stage.now = _Step(version, now if seen else None, frozenset(stage.seats))
        stage.brought = {s: ids for s, ids in stage.brought.items() if s >= version}

    def _settle(
        self, index: int, stage: _Stage, step: _Step, shares: Mapping[PeerId, int], now: float
    ) -> None:
        heard = step.heard[self._own]
        stage.we_queued = heard > 0 and step.queued[self._own] >= BACKLOGGED_SHARE * heard
        if step.began is None or not 0 < now - step.began <= MAX_STEP_S:
            return
        shares = shares or Counter(stage.brought.get(step.step, {}).values())
        if len(step.present) == 1:
            shares = dict.fromkeys(step.present, 1)
        if not shares or self._waited_for_us(index):
            return
        for peer in step.present & stage.seats.keys() - {self._own}:
            account = self._account(peer, index) if self._backlogged(step, peer) else None
            if account is not None:
                work = self._per_step * shares.get(peer, 0) / sum(shares.values())
                account.add(work, now - step.began, now)

    def _account(self, peer: PeerId, stage: int) -> Account | None:
        known = self._accounts.get((peer, stage))
        if known is None and len(self._accounts) < MAX_ACCOUNTS:
            known = self._accounts[peer, stage] = Account()
        return known

    def _backlogged(self, step: _Step, peer: PeerId) -> bool:
        others = [other for other in step.heard if other != peer] or [peer]
        heard = sum(step.heard[other] for other in others)
        queued = sum(step.queued[other] for other in others)
        return heard > 0 and queued >= BACKLOGGED_SHARE * heard

    def _waited_for_us(self, index: int) -> bool:
        """Whether our own seat in another stage had a queue, so that it was the bottleneck."""
        return any(stage.we_queued for other, stage in self._stages.items() if other != index)
