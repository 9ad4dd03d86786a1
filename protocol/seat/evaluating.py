"""Held-out evaluation: the loss of a version on text that nobody trains on, while the run goes on.

When stage 0 begins a version that is due, a few held-out microbatches travel forward through the
pipeline on up to three *paths*, and the last stage adds up their loss. Path p passes the replica of
each stage that is p-th in an order by hash, so that no replica is on two. Everybody works the paths
out alone.

Nothing ever waits for it. One held-out microbatch is with the worker at a time, beside those that
train, and none once the step is being closed. If the version is gone by then, or a replica of the
path is, that path gives no number.

State: the held-out microbatches of our version, and those that have come early for the next.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.ids import PeerId, rank
from protocol.limits import MAX_PATHS as PATHS
from protocol.manifest import Evaluation
from protocol.pipeline.effects import (
    Compute,
    Keep,
    Outcome,
    PassTask,
    PayloadKey,
    SendPayload,
    held_out,
)
from protocol.pipeline.place import Place
from protocol.seat.effects import HeldOutLoss, SeatEffect
from protocol.seat.standing import Standing
from protocol.view import SwarmView
from protocol.wire.messages import HeldOut


def on_path(view: SwarmView, stage: int, version: int, path: int) -> PeerId | None:
    """Return the replica of a stage that is on a path; None: there are not so many."""
    peers = [r.peer for r in view.staying(stage)]
    if path >= len(peers):
        return None
    return sorted(peers, key=lambda peer: rank("evaluates", stage, version, peer))[path]


@dataclass(slots=True)
class _Version:
    """What we have of one version's evaluation."""

    path: int
    waiting: list[int] = field(default_factory=list)
    """Held-out microbatches that the worker has not had, the next one first."""
    seen: set[int] = field(default_factory=set)
    losses: dict[int, float] = field(default_factory=dict)
    """Summed, in nats, of those that the last stage has run."""


class Evaluating:
    """See the module's docstring. Methods return effects.

    Args:
        terms: None: the run has no evaluation, and this does nothing.
        step: version the seat begins with.
        steps: returns the run's last version, as far as we know; it is due as well.
    """

    def __init__(
        self,
        place: Place,
        standing: Standing,
        terms: Evaluation | None,
        step: int,
        steps: Callable[[], int],
    ) -> None:
        self._place, self._standing = place, standing
        self._terms, self._step, self._steps = terms, step, steps
        self._versions: dict[int, _Version] = {}
        """Ours and the next one."""
        self._busy = self._begun = False

    def start_step(self, step: int) -> None:
        """The version is another one: what was not finished of the one before is given up."""
        self._step, self._busy, self._begun = step, False, False
        self._versions = {v: of for v, of in self._versions.items() if v >= step}

    def held_out(self, sender: PeerId, message: HeldOut, now: float) -> list[SeatEffect]:
        """Take a held-out microbatch of the replica before us on its path; its payload is kept only
        on request."""
        version, place = message.step, self._place
        if not self._is_due(version) or version not in (self._step, self._step + 1):
            return []
        stages = place.stage - 1, place.stage
        view = self._standing.view
        ways = [[on_path(view, s, version, path) for s in stages] for path in range(PATHS)]
        if [sender, place.me] not in ways:
            return []  # or it sees other replicas than we do
        path = ways.index([sender, place.me])
        of = self._versions.setdefault(version, _Version(path))
        known = message.item in of.seen or of.path != path
        if known or not self._terms or message.item >= self._terms.microbatches:
            return []
        of.seen.add(message.item)
        of.waiting.append(message.item)
        number = held_out(message.item)
        return [Keep((PayloadKey(version, "tokens", number), PayloadKey(version, "input", number)))]

    def work(self, *, may_begin: bool, free: bool) -> list[Compute]:
        """Return what the worker does next.

        Args:
            may_begin: whether the swarm trains, so that stage 0 begins what is due.
            free: whether the step is not being closed.
        """
        if self._terms is None or self._busy or not free:
            return []
        if may_begin and self._place.first and not self._begun:
            self._begin(self._terms)
        of = self._versions.get(self._step)
        if of is None or not of.waiting:
            return []
        self._busy = True
        return [Compute(PassTask(self._step, held_out(of.waiting.pop(0)), "loss"))]

    def computed(self, task: PassTask, outcome: Outcome) -> list[SeatEffect]:
        """Take the ``outcome`` of a ``task``; its payload is already stored."""
        of = self._versions.get(task.step)
        if task.step != self._step or of is None:
            return []
        self._busy = False
        if outcome.error:
            of.waiting.clear()  # without one of them there is no number
            return []
        return self._sum_up(of, task, outcome) if self._place.last else self._pass_on(of, task)

    # --- within ---------------------------------------------------------------------------------

    def _is_due(self, version: int) -> bool:
        terms = self._terms
        return terms is not None and (version % terms.every == 0 or version == self._steps())

    def _begin(self, terms: Evaluation) -> None:
        """Begin the path that we are first on, if the version is due and we are on any."""
        self._begun = True
        if not self._is_due(self._step):
            return
        for path in range(PATHS):
            stages = range(self._place.stages)
            peers = [on_path(self._standing.view, stage, self._step, path) for stage in stages]
            if None not in peers and peers[0] == self._place.me:
                items = list(range(terms.microbatches))
                self._versions[self._step] = _Version(path, items, set(items))

    def _pass_on(self, of: _Version, task: PassTask) -> list[SeatEffect]:
        peer = on_path(self._standing.view, self._place.stage + 1, task.step, of.path)
        if peer is None:
            of.waiting.clear()
            return []
        step, number = task.step, task.microbatch
        message = HeldOut(self._place.stage + 1, step, held_out(number))
        keys = PayloadKey(step, "tokens", number), PayloadKey(step, "output", number)
        return [SendPayload(peer, message, keys)]

    def _sum_up(self, of: _Version, task: PassTask, outcome: Outcome) -> list[SeatEffect]:
        of.losses[task.microbatch] = outcome.loss_sum
        if self._terms is None or len(of.losses) < self._terms.microbatches:
            return []
        loss = math.fsum(of.losses.values()) / self._terms.tokens
        return [HeldOutLoss(task.step, loss)]
