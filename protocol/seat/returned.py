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
from protocol.pipeline.place import Place
from protocol.view import SwarmView
from protocol.wire.messages import Returned

STEPS: Final = 3
"""The stage before may be ahead of us, but not by so many steps."""


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
