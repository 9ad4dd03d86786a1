"""The cost of our draining now to the swarm, stage by stage. Pure functions of the view."""

from __future__ import annotations

import math
from dataclasses import dataclass

from protocol.ids import PeerId
from protocol.view import SwarmView


@dataclass(frozen=True, slots=True)
class DrainCost:
    """The consequence of our draining for one stage that we hold."""

    stage: int
    remaining: int
    """Replicas that serve it without us and do not drain either."""
    complete: bool = False
    """Whether the stage has made the run's last version."""

    @property
    def last(self) -> bool:
        """Whether no other replica is left to serve the stage."""
        return self.remaining == 0

    @property
    def words(self) -> str:
        """Say it in a sentence."""
        if self.last and self.complete:
            return (
                f"you are the last volunteer of stage {self.stage}: "
                "the run is complete, and its last version stays on your disk"
            )
        if self.last:
            return (
                f"you are the last volunteer of stage {self.stage}: "
                "the swarm will wait for another volunteer"
            )
        others = "1 volunteer" if self.remaining == 1 else f"{self.remaining} volunteers"
        return f"stage {self.stage} keeps {others}"


def is_ending(view: SwarmView) -> bool:
    """Whether a stage is about to lose its last replica: then the others save where they stand,
    so that the run can be taken up there."""
    stages = (view.serving(stage) for stage in range(len(view.stages)))
    return any(serving and all(r.leaving for r in serving) for serving in stages)


def drain_costs(view: SwarmView, me: PeerId, steps: float = math.inf) -> tuple[DrainCost, ...]:
    """Return what becomes of every stage that ``me`` serves if it drains.

    Args:
        view: who holds what.
        me: the volunteer that would drain.
        steps: length of the run; the version after its last step has this number.
    """
    found = []
    for stage in range(len(view.stages)):
        serving = view.serving(stage)
        if any(replica.peer == me for replica in serving):
            staying = [r for r in serving if r.peer != me and not r.leaving]
            complete = any(r.peer == me and r.version >= steps for r in serving)
            found.append(DrainCost(stage, len(staying), complete))
    return tuple(found)
