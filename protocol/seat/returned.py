"""Returned microbatches: a stage may count only those whose gradients the stage before has used.

A replica that counts a microbatch but withholds or spoils its gradient would leave the stage before
with a step that can never be closed: the parameters that make the gradient are replaced once the
replica's stage has closed the step. So the replicas of the stage before report the microbatches
that they have counted (``Returned``), and no replica of the next stage makes or follows a plan that
counts others. A healthy swarm never waits for this, because the stage before closes its step no
earlier. A step closed by most of the stage before counts as returned completely.

``Telling`` is the sender's part, ``Confirmed`` the receiver's; both hold two or three steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from protocol.answer import YES, Answer, no
from protocol.effects import Penalise, Send
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.pipeline.ledger import count_of, from_bitmap
from protocol.pipeline.place import Place
from protocol.view import SwarmView
from protocol.wire.messages import Plan, Returned

TELL_S: Final = 0.25
"""Least time between two messages of a step to one replica while more is to come."""
REPEAT_S: Final = 1.0
STEPS: Final = 3


class Telling:
    """Tells the replicas of the next stage whose gradients we have made use of."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._told: dict[tuple[PeerId, int], tuple[int, float]] = {}
        """By peer and step: of how many, and when."""
        self.due: float | None = None
        """When to look again."""

    def tell(
        self, view: SwarmView, ledgers: Mapping[int, bytes], *, idle: bool, now: float
    ) -> list[Send]:
        """Report newly counted microbatches, and repeat reports that may have been lost.

        Args:
            view: the live replicas.
            ledgers: bitmaps of what we have counted, for our step and the previous one.
            idle: whether no more results of our step are expected for now.
            now: monotonic seconds.
        """
        effects, dues = list[Send](), list[float]()
        newest, told = max(ledgers), dict[tuple[PeerId, int], tuple[int, float]]()
        counted = [(of, ids, count) for of, ids in ledgers.items() if (count := count_of(ids))]
        for replica in view.serving(self._place.stage + 1):
            for of, ids, count in counted:
                if replica.version > of:
                    continue
                to = replica.peer, of
                known, at = self._told.get(to, (0, -math.inf))
                new = count != known
                due = now if new and (idle or of < newest) else at + (TELL_S if new else REPEAT_S)
                if due <= now:
                    effects.append(Send(to[0], Returned(self._place.stage + 1, of, ids)))
                    known, at, due = count, now, now + REPEAT_S
                told[to] = known, at
                dues.append(due)
        self.due = min(dues, default=None)
        self._told = told
        return effects


class Confirmed:
    """The microbatches that the stage before reports as returned by us and our siblings."""

    def __init__(self, place: Place, step: int) -> None:
        self._place, self._step = place, step
        self._ids: dict[int, set[int]] = {}
        self._view = SwarmView(((),) * place.stages)

    def start_step(self, step: int) -> None:
        """Begin a step; what came early counts."""
        self._step = step
        self._ids = {of: ids for of, ids in self._ids.items() if of >= step}

    def update_view(self, view: SwarmView) -> None:
        """Take a new view."""
        self._view = view

    def returned(self, sender: PeerId, message: Returned) -> list[Penalise]:
        """A replica of the stage before has these gradients."""
        if not self._step <= message.step < self._step + STEPS:
            return []
        try:
            ids = from_bitmap(message.ids, message.step, self._place.per_step)
        except RemoteProtocolError as error:
            return [Penalise(sender, error.reason, error.penalty)]
        self._ids.setdefault(message.step, set()).update(ids)
        return []

    def whole(self) -> bool:
        """Whether everything of the step has been returned."""
        if len(self._ids.get(self._step, ())) == self._place.per_step:
            return True
        before = self._view.serving(self._place.stage - 1)  # nobody before the first stage
        past = sum(replica.version > self._step for replica in before)
        return not before or 2 * past > len(before)

    def covers(self, plan: Plan) -> Answer:
        """Whether all that a plan of our step counts for others has been returned."""
        if self.whole():
            return YES
        here, counted = self._ids.get(plan.step, set[int]()), set[int]()
        for member in plan.members:
            if member.peer != self._place.me:
                counted |= from_bitmap(member.counted, plan.step, self._place.per_step)
        if counted <= here:
            return YES
        return no(
            f"the stage before has not got {len(counted - here)} gradients that a plan counts"
        )
