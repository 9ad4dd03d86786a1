"""Whether training has diverged here, or a neighbour's tensors spoil our passes.

A pass whose numbers overflow does not show the cause: our parameters, or an input that was absurd
within what the codec allows. So a fault is reported only if several neighbours' inputs failed in a
row, or if no other neighbour's input could be tried.

State: the neighbours whose inputs failed since a microbatch was last finished.
"""

from collections import Counter

from protocol.ids import PeerId
from protocol.pipeline.microbatches import MicrobatchState
from protocol.view import SwarmView

FROM_SEVERAL = 3
"""Failed passes in a row that mean divergence, if their inputs are not all of one neighbour."""
FROM_ONE = 5
"""The same if they are, and there is no other; it is not banned for so many yet."""
SPOILT_POINTS = 10
"""Penalty for such a tensor; low, because its sender may have received absurd values itself."""


class Divergence:
    """See the module's docstring.

    Args:
        stage: ours.
    """

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._givers: Counter[PeerId] = Counter()
        self.view = SwarmView(())

    def finished(self) -> None:
        """A microbatch was finished: the parameters are sound."""
        self._givers.clear()

    def found(self, state: MicrobatchState, *, back: bool) -> bool:
        """Note that a pass of a microbatch failed, forward or back, and say whether that means that
        training has diverged."""
        if state.giver is None:
            return True
        self._givers[state.giver] += 1
        if len(self._givers) > 1:
            return self._givers.total() >= FROM_SEVERAL
        return self._givers.total() >= FROM_ONE and self._alone(state, state.giver, back)

    def _alone(self, state: MicrobatchState, giver: PeerId, back: bool) -> bool:
        """Whether no other peer could give the tensor. Once a stage has closed a step, only the
        replica that counts a microbatch has its gradient."""
        stage = self._stage + (1 if back else -1)
        closed = back and self.view.committed(stage) > state.step
        return closed or all(replica.peer == giver for replica in self.view.serving(stage))
