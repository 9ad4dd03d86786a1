"""Returned steps: a stage closes a step only once the stage before has all gradients of it.

A replica that counts a microbatch but withholds or spoils its gradient would leave the stage before
with a step that can never be closed: the parameters that make the gradient are replaced once the
replica's stage has closed the step. So a replica that knows the ledgers of its stage to be whole
(its leader) tells the replicas of the next stage (``Returned``), and none of these makes or follows
a plan of the step before. A step closed by most of the stage before counts, too.
"""

from __future__ import annotations

from typing import Final

from protocol.answer import YES, Answer, no
from protocol.effects import Send
from protocol.ids import PeerId
from protocol.pipeline.place import Place
from protocol.view import SwarmView
from protocol.wire.messages import Returned

REPEAT_S: Final = 1.0
STEPS: Final = 3
"""The stage before may be ahead of us, but not by so many steps."""


class ReturnedReporter:
    """Tells the replicas of the next stage that our stage has counted the whole step."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._again: dict[tuple[PeerId, int], float] = {}
        """By replica and step: when to tell it again, because the message may have been lost."""

    @property
    def due(self) -> float | None:
        """When to tell again, in monotonic seconds."""
        return min(self._again.values(), default=None)

    def tell(self, view: SwarmView, step: int, now: float, *, whole: bool) -> list[Send]:
        """Tell the replicas that have not closed the step.

        Args:
            view: the live replicas.
            step: our step.
            now: monotonic seconds.
            whole: whether our stage has counted all of it, as far as we know.
        """
        after = view.serving(self._place.stage + 1) if whole else ()
        open_there = [(replica.peer, step) for replica in after if replica.version <= step]
        due = {to: self._again.get(to, now) for to in open_there}
        told = [to for to, at in due.items() if at <= now]
        self._again = due | dict.fromkeys(told, now + REPEAT_S)
        return [Send(peer, Returned(self._place.stage + 1, step)) for peer, _ in told]


class ReturnedSteps:
    """The steps of which the stage before has all gradients, as its replicas tell us."""

    def __init__(self, place: Place) -> None:
        self._place, self._newest = place, -1

    def told(self, message: Returned, step: int) -> None:
        """Take what a replica of the stage before tells us, who are at ``step``."""
        if message.step < step + STEPS:
            self._newest = max(self._newest, message.step)

    def has(self, view: SwarmView, step: int) -> Answer:
        """Whether the stage before has all gradients of our ``step``."""
        before = view.serving(self._place.stage - 1)  # nobody before the first stage
        past = sum(replica.version > step for replica in before)
        if self._newest >= step or not before or 2 * past > len(before):
            return YES
        return no("the stage before has not got all gradients of the step yet")
