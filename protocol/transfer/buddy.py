"""Buddies: which peer keeps copies of another stage's checkpoints.

Each checkpoint of a stage is also kept by one replica of a neighbouring stage, its *buddy*, so that
a stage that loses all its volunteers at once can be restored. The buddy is derived like a leader:
equal views name the same peer, and while views differ two peers keep a copy. A stage without a
neighbour that others serve has no buddy.

Pure functions of a view; no state.
"""

from collections.abc import Mapping

from protocol.ids import PeerId, rank
from protocol.view import SwarmView

FOREIGN_KEPT = 2
"""Copies of each other stage that a buddy keeps on its disk."""


def buddy(view: SwarmView, stage: int, places: Mapping[PeerId, str]) -> PeerId | None:
    """Return the peer that keeps copies of a stage's checkpoints, or None.

    It is a serving replica of the next stage, else of the previous one, that does not hold the
    stage itself. A peer at another place than all holders of the stage is preferred.

    Args:
        view: the swarm as seen from here.
        stage: the stage whose checkpoints are copied.
        places: place of each peer, such as its host; a peer without one counts as elsewhere.
    """
    holders = {replica.peer for replica in view.stages[stage]}
    occupied = {places[holder] for holder in holders if holder in places}

    def order(peer: PeerId) -> tuple[bool, bytes]:
        return places.get(peer) in occupied, rank("buddy", stage, peer)

    for beside in (stage + 1, stage - 1):
        others = [r.peer for r in view.serving(beside) if r.peer not in holders and not r.leaving]
        if others:
            return min(others, key=order)
    return None


def kept_by(view: SwarmView, me: PeerId, places: Mapping[PeerId, str]) -> tuple[int, ...]:
    """Return the stages of ``view`` whose buddy is ``me``; ``places`` as for ``buddy``."""
    stages = range(len(view.stages))
    return tuple(stage for stage in stages if buddy(view, stage, places) == me)
