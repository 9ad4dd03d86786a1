"""Backup tasks: when work that is out is worth giving to a second replica as well.

After MapReduce (Dean and Ghemawat 2004, section 3.6): near the end of a step a replica with nothing
to do runs what another one is late with, and whichever is done first counts. It must pay clearly
(``MARGIN``), and there are at most a quarter of a step's microbatches of it, so that it can never
feed on itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from protocol.ids import PeerId, short
from protocol.pipeline.holding import Delivery, Holder
from protocol.pipeline.next_hop import NextHop
from protocol.pipeline.timing import DEVIATIONS, Timing

MARGIN = 1.5
"""The predicted rest of the wait must exceed the idle replica's time by this factor."""
LEAST_GAIN_S = 0.1
DEVIATIONS_AT_THE_END = 2
"""Lateness threshold once no leases remain: a needless backup then displaces no work."""
SHARE = 4
"""At most one in so many microbatches of a step is sent twice."""


def backup_at(
    held: Timing, queue: int, since: float, other: Timing, deviations: float = DEVIATIONS
) -> float:
    """Return when a microbatch is late enough for a backup, monotonic seconds.

    A late microbatch is expected to take about as long again. That must be clearly more than the
    idle replica ``other`` needs.

    Args:
        held: times of its holder.
        queue: microbatches before it at the holder, itself included.
        since: when the holder got it, monotonic seconds.
        other: times of the idle replica.
        deviations: how many deviations above the mean count as late.
    """
    need_s = max(LEAST_GAIN_S, MARGIN * other.expected_s())
    known = held if held.measured else other
    return since + max(known.late_s(queue, deviations), need_s)


def slower_at(held: Timing, queue: int, since: float, other: Timing, now: float) -> float:
    """Return when to send a backup if nothing else is left to be leased, monotonic seconds.

    As ``backup_at``, but at once (``now``) if the holder is known to be that much slower than
    ``other`` and needs that much longer. A longer queue alone is no reason: equally fast replicas
    both wait for the stages behind them.

    Args:
        held: times of its holder.
        queue: microbatches before it at the holder, itself included.
        since: when the holder got it, monotonic seconds.
        other: times of the idle replica.
        now: monotonic seconds.
    """
    need_s = max(LEAST_GAIN_S, MARGIN * other.expected_s())
    left_s = held.expected_s(queue) - (now - since)
    if held.measured and min(held.mean_s, left_s) > need_s:
        return now
    return backup_at(held, queue, since, other, DEVIATIONS_AT_THE_END)


class BackupBudget:
    """Counts the backups of the current step."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.enabled = True
        """False: no backups at all, to compare."""
        self._step, self._used = -1, 0

    def left(self, step: int) -> int:
        """Return how many more may be made in a step; it is the newest one from now on."""
        if step > self._step:
            self._step, self._used = step, 0
        return max(0, self.allowed - self._used) if self.enabled and step == self._step else 0

    def spend(self) -> None:
        """One was made."""
        self._used += 1


def allowance(per_step: int, replicas: int) -> int:
    """Return how many backups per step each of so many replicas may make; together a quarter of
    the step, but one each."""
    return max(1, per_step // (SHARE * max(1, replicas)))


@dataclass(frozen=True, slots=True)
class Due:
    """Something to be given to a second replica."""

    at: float
    """When, in monotonic seconds."""


SomeDue = TypeVar("SomeDue", bound=Due)


def first_due(
    by_holder: Mapping[PeerId, Collection[SomeDue]], order: Callable[[SomeDue], tuple[float, int]]
) -> SomeDue | None:
    """Return the next one that is due. Of one replica's work this is the last, in ``order``, once
    its first is due: the replica has already begun the first ones."""
    ends = [
        replace(max(queue, key=order), at=min(each.at for each in queue))
        for queue in by_holder.values()
    ]
    return min(ends, key=lambda end: end.at, default=None)


@dataclass(frozen=True, slots=True)
class Backup(Due):
    """A delivery that another replica of the next stage is to get as well."""

    delivery: Delivery
    holder: Holder
    usual_s: float
    peer: PeerId
    """The replica that gets the backup."""

    def words(self, now: float) -> str:
        """Say why."""
        return (
            f"microbatch {self.delivery.microbatch}: {short(self.holder.peer)} has had it for "
            f"{now - self.holder.sent_at:.1f} s, usually {self.usual_s:.1f}; {short(self.peer)} "
            f"has nothing to do and gets it too"
        )


def next_backup(
    awaited: Collection[Delivery],
    next_hop: NextHop,
    budget: BackupBudget,
    now: float,
    *,
    least_charged: int = 1,
) -> Backup | None:
    """Return the next backup of the newest step, or None if there will be none.

    Args:
        awaited: deliveries whose gradients have not come.
        next_hop: the next stage's replicas with their times.
        budget: backups left in each step.
        now: monotonic seconds.
        least_charged: replicas with fewer of our microbatches get no backups taken from them.
    """
    if any(delivery.holder is None for delivery in awaited):
        return None  # a microbatch waits to be sent at all
    step = max((delivery.step for delivery in awaited), default=-1)
    idle = next_hop.idle(now) if budget.left(step) else []
    by_holder: dict[PeerId, list[Backup]] = {}
    for delivery in awaited:
        holder = delivery.holder
        peer = next((peer for peer in idle if peer not in delivery.sent_to), None)
        if holder is None or peer is None or delivery.backed_up or delivery.step != step:
            continue
        if next_hop.charged(holder.peer) < least_charged:
            continue
        held, since = next_hop.timing(holder.peer), holder.held_since or holder.sent_at
        at = backup_at(held, holder.queue, since, next_hop.timing(peer))
        backup = Backup(at, delivery, holder, held.expected_s(holder.queue), peer)
        by_holder.setdefault(holder.peer, []).append(backup)
    return first_due(by_holder, lambda backup: (backup.holder.sent_at, backup.delivery.microbatch))
