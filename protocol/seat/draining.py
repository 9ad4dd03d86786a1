"""Drains a seat without losing the microbatches it has counted.

A draining seat accepts nothing new and returns work that it has not begun. It finishes what it has
begun and brings it into the round of the current step. It is drained when its own stage and both
neighbours have closed every step it worked on; the driver limits the time.

The only replica of a stage has no sibling to take its work, so it still computes the whole current
step; so do all replicas of a stage that drain together.
"""

from protocol.pipeline.effects import PipelineEffect
from protocol.pipeline.pipeline import Pipeline
from protocol.pipeline.place import Place
from protocol.rounds.member import Progress, RoundMember
from protocol.view import SwarmView


class Draining:
    """Whether a seat drains, and whether it has drained."""

    def __init__(self, pipeline: Pipeline, member: RoundMember) -> None:
        self._pipeline, self._member = pipeline, member
        self._began_at = 0

    @property
    def begun(self) -> bool:
        """Whether the seat drains."""
        return self._pipeline.refused_from is not None

    @property
    def complete(self) -> bool:
        """Whether no peer can ask for anything any more."""
        waiting = self._member.progress is Progress.WAITING and not self._member.hashing
        return self.begun and waiting and self._pipeline.empty

    def begin(self, *, alone: bool) -> list[PipelineEffect]:
        """Take no more work; ``alone``: none of the steps after this one."""
        self._began_at = step = self._pipeline.step
        return self._pipeline.refuse_from(step + 1 if alone else step)

    def go_on(self) -> None:
        """Those we left the work to drain as well: take the step whole in which we began to."""
        if self._pipeline.refused_from is not None:
            self._pipeline.refused_from = max(self._pipeline.refused_from, self._began_at + 1)

    def cancel(self) -> None:
        """Stay after all."""
        self._pipeline.refused_from = None

    @property
    def wants_work(self) -> bool:
        """Whether microbatches of the current step may still be leased."""
        refused_from = self._pipeline.refused_from
        return refused_from is None or self._pipeline.step < refused_from


def others_stay(view: SwarmView, place: Place) -> bool:
    """Whether another replica of the stage serves and does not drain."""
    return any(r.peer != place.me and not r.leaving for r in view.serving(place.stage))
