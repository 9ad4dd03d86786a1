"""Returned steps: a stage closes a step only once the stage before has all gradients of it.

A replica that counts a microbatch but withholds or spoils its gradient would leave the stage before
with a step that can never be closed: the parameters that make the gradient are replaced once the
replica's stage has closed the step. So replicas that know the ledgers of their stage to be whole
say so in their heartbeats, and no replica of the next stage makes or follows a plan of the step
before. A step closed by most of the stage before counts, too.
"""

from collections.abc import Callable
from typing import Final

from protocol.answer import YES, Answer, no
from protocol.ids import PeerId
from protocol.view import SwarmView

STEPS: Final = 3
"""The stage before may be ahead of us, but not by so many steps."""


WITNESSES: Final = 2
"""One of two that say so is honest."""


class ReturnedSteps:
    """The steps of which the stage before ours has all gradients, as its replicas say: two of them,
    where more are proven. One alone that says so, and a friend that counts a microbatch here and
    returns no gradient, would stop that stage for good.

    Args:
        stage: ours.
        is_proven: whether work has proven a peer.
    """

    def __init__(self, stage: int, is_proven: Callable[[PeerId], bool]) -> None:
        self._before, self._is_proven = stage - 1, is_proven
        self._said: dict[PeerId, int] = {}
        """By replica: the newest step that it has said so of."""

    def observe(self, view: SwarmView, step: int) -> None:
        """Take what the replicas of the stage before say, while we are at ``step``."""
        self._said = {peer: of for peer, of in self._said.items() if of >= step}
        for replica in view.serving(self._before):
            if replica.returned and step <= replica.version < step + STEPS:
                self._said[replica.peer] = max(self._said.get(replica.peer, 0), replica.version)

    def has(self, view: SwarmView, step: int) -> Answer:
        """Whether the stage before has all gradients of our ``step``."""
        before = view.serving(self._before)  # nobody before the first stage
        past = sum(replica.version > step for replica in before)
        said = [peer for peer, of in self._said.items() if of >= step]
        if sum(self._is_proven(replica.peer) for replica in before) > WITNESSES:
            enough = len(list(filter(self._is_proven, said))) >= WITNESSES
        else:
            enough = bool(said)
        if enough or not before or 2 * past > len(before):
            return YES
        return no("the stage before has not got all gradients of the step yet")
