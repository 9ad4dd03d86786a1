"""The cost of our draining now to the swarm, stage by stage. Pure functions of the view."""

from dataclasses import dataclass

from protocol.ids import PeerId
from protocol.view import SwarmView


@dataclass(frozen=True, slots=True)
class DrainCost:
    """The consequence of our draining for one stage that we hold."""

    stage: int
    remaining: int
    """Replicas that serve it without us and do not drain either."""

    @property
    def last(self) -> bool:
        """Whether no other replica is left to serve the stage."""
        return self.remaining == 0


def is_ending(view: SwarmView) -> bool:
    """Whether a stage is about to lose its last replica: then the others save where they stand,
    so that the run can be taken up there."""
    stages = (view.serving(stage) for stage in range(len(view.stages)))
    return any(serving and all(r.leaving for r in serving) for serving in stages)


def drain_costs(view: SwarmView, me: PeerId) -> tuple[DrainCost, ...]:
    """Return what becomes of every stage that ``me`` serves if it drains.

    Args:
        view: who holds what.
        me: the volunteer that would drain.
    """
    found = []
    for stage in range(len(view.stages)):
        serving = view.serving(stage)
        if any(replica.peer == me for replica in serving):
            staying = [r for r in serving if r.peer != me and not r.leaving]
            found.append(DrainCost(stage, len(staying)))
    return tuple(found)
