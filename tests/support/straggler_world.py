"""A world in which some peers are slow: always, now and then, or just when a step ends."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial

from client.lab.simulate.agenda import Range
from client.lab.simulate.peer import SimPeer
from client.lab.simulate.training import TrainingWorld, WorldConfig
from protocol.effects import Penalise
from protocol.ids import PeerId
from protocol.pipeline.effects import (
    BackwardTask,
    Committed,
    GradientAccepted,
    LossTask,
    Outcome,
    Rerouted,
    Task,
)
from protocol.seat.effects import SeatEffect

WARM_UP_STEPS = 1
"""In the first step everybody takes itself for the leader at first, and ids are leased twice."""
Slowness = Callable[["StragglerWorld", SimPeer, Task], float]
"""By what factor a peer's task takes longer than usual."""


def even(world: StragglerWorld, peer: SimPeer, task: Task) -> float:
    """Everybody is as fast as everybody else; the loss costs as much as a forward and a backward of
    the other stages."""
    return 2.0 if isinstance(task, LossTask) else 1.0


class StragglerWorld(TrainingWorld):
    """Counts what was sent again and why, who computed how much, and when steps were committed.

    Args:
        rates: the peers' reports of their speed; None: not known yet.
    """

    def __init__(
        self,
        config: WorldConfig,
        slowness: Slowness = even,
        *,
        rates: Callable[[StragglerWorld, SimPeer], float] | None = None,
    ) -> None:
        self.slowness, self._rates = slowness, rates
        self._queues: dict[tuple[PeerId, int], deque[Task]] = {}
        self.reroutes: list[Rerouted] = []
        self.backups: list[tuple[float, SimPeer, str]] = []
        self.points: Counter[PeerId] = Counter()
        """Penalty points of a peer."""
        self.computed_times: Counter[tuple[int, int]] = Counter()
        """How often a (stage, microbatch) was added to a gradient; once is what is needed."""
        self.counted_for: Counter[PeerId] = Counter()
        """Microbatches that the committed plans count for a peer."""
        self.committed_at: dict[tuple[int, int], float] = {}
        """When the last replica had made a (stage, version)."""
        super().__init__(config)

    @property
    def done_at(self) -> float:
        """When the last step was committed everywhere."""
        return max(self.committed_at.values())

    def wasted(self) -> float:
        """Return the part of all forwards and backwards since the warm-up that were doubles."""
        first = WARM_UP_STEPS * self.config.per_step
        times = [n for (_, m), n in self.computed_times.items() if m >= first]
        return 1 - len(times) / sum(times)

    def hang(self, peer: SimPeer, noticed_s: Range) -> None:
        """The peer stops; its links stay, and its silence is noticed by membership much later."""
        peer.alive = False
        self.note(peer, "hangs")
        for other in self.peers.values():
            self.agenda.sometime(noticed_s, partial(self._lose, other, peer))

    def of_stage(self, stage: int) -> list[SimPeer]:
        """Return a stage's peers, in the order in which they were made."""
        return [peer for peer in self.peers.values() if peer.stage == stage]

    def closing(self, stage: int, share: float) -> bool:
        """Whether a stage has counted so much of the step at which its slowest replica is."""
        seats = [peer.seat for peer in self.of_stage(stage) if peer.seat]
        step = min(seat.step for seat in seats)
        done = set().union(*(seat.pipeline.done() for seat in seats if seat.step == step))
        return len(done) >= share * self.config.per_step

    def note(self, peer: SimPeer, words: str) -> None:
        super().note(peer, words)
        if "gets it too" in words:
            self.backups.append((self.agenda.now, peer, words))

    def _perform_one(self, peer: SimPeer, effect: SeatEffect, parts: tuple[bytes, ...]) -> None:
        if isinstance(effect, Rerouted):
            self.reroutes.append(effect)
        elif not isinstance(effect, GradientAccepted):
            if isinstance(effect, Penalise):
                self.points[effect.peer] += effect.points
            super()._perform_one(peer, effect, parts)

    def rate_of(self, peer: SimPeer) -> float:
        return self._rates(self, peer) if self._rates else 0.0

    def _submit(self, peer: SimPeer, task: Task) -> None:
        """How slow a peer is shows when its worker comes to the task."""
        queue = self._queues.setdefault((peer.peer, peer.epoch), deque())
        queue.append(task)
        if len(queue) == 1:
            self._begin(peer, peer.epoch)

    def _begin(self, peer: SimPeer, epoch: int) -> None:
        task = self._queues[peer.peer, epoch][0]
        took_s = self.random.uniform(*self.config.compute_s) * self.slowness(self, peer, task)
        self.agenda.after(took_s, partial(self._end, peer, epoch))

    def _end(self, peer: SimPeer, epoch: int) -> None:
        queue = self._queues[peer.peer, epoch]
        self.compute(peer, queue[0], epoch)
        queue.popleft()
        if queue:
            self._begin(peer, epoch)

    def computed(self, peer: SimPeer, task: Task, outcome: Outcome) -> None:
        if isinstance(task, BackwardTask | LossTask):
            self.computed_times[peer.stage, task.microbatch] += 1
        super().computed(peer, task, outcome)

    def committed(self, peer: SimPeer, committed: Committed) -> None:
        self.counted_for[peer.peer] += committed.counted
        self.committed_at[peer.stage, committed.version] = self.agenda.now
        super().committed(peer, committed)
