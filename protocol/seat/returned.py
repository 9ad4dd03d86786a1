"""Returned steps: a stage closes a step only once the stage before has all gradients of it.

A replica that counts a microbatch but withholds or spoils its gradient would leave the stage before
with a step that can never be closed: the parameters that make the gradient are replaced once the
replica's stage has closed the step. So a replica that knows the ledgers of its stage to be whole
(its leader) says so in its heartbeats, and no replica of the next stage makes or follows a plan of
the step before. A step closed by most of the stage before counts, too.
"""

from __future__ import annotations

from typing import Final

from protocol.answer import YES, Answer, no
from protocol.view import SwarmView

STEPS: Final = 3
"""The stage before may be ahead of us, but not by so many steps."""


class ReturnedSteps:
    """The steps of which the stage before ours has all gradients, as its replicas say."""

    def __init__(self, stage: int) -> None:
        self._before, self._newest = stage - 1, -1

    def observe(self, view: SwarmView, step: int) -> None:
        """Take what the replicas of the stage before say, while we are at ``step``."""
        said = (r.version for r in view.serving(self._before) if r.returned)
        self._newest = max([self._newest, *(one for one in said if one < step + STEPS)])

    def has(self, view: SwarmView, step: int) -> Answer:
        """Whether the stage before has all gradients of our ``step``."""
        before = view.serving(self._before)  # nobody before the first stage
        past = sum(replica.version > step for replica in before)
        if self._newest >= step or not before or 2 * past > len(before):
            return YES
        return no("the stage before has not got all gradients of the step yet")
