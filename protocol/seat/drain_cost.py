"""The cost of our draining now to the swarm, stage by stage. Pure functions of the view."""

from protocol.ids import PeerId
from protocol.view import SwarmView


def is_ending(view: SwarmView) -> bool:
    """Whether a stage is about to lose its last replica: then the others save where they stand,
    so that the run can be taken up there."""
    stages = (view.serving(stage) for stage in range(len(view.stages)))
    return any(serving and all(r.leaving for r in serving) for serving in stages)


def drain_costs(view: SwarmView, me: PeerId) -> dict[int, int]:
    """Return, by stage that ``me`` serves, the replicas that serve it without it and do not drain
    either."""
    return {
        stage: sum(r.peer != me and not r.leaving for r in serving)
        for stage, serving in enumerate(map(view.serving, range(len(view.stages))))
        if any(replica.peer == me for replica in serving)
    }
