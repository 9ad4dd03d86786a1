"""Who keeps a copy of another stage's checkpoints, and of which version.

Every checkpoint of a stage is kept by one replica of a stage beside it as well, its *buddy*, so
that a stage whose volunteers all go at once can be taken up again. The buddy is derived like a
leader: everybody who has the same view names the same one, and where views differ for a moment two
keep a copy. A stage that nobody else stands beside keeps its checkpoints alone.

Pure functions of a view; they hold nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.ids import PeerId, rank
from protocol.view import SwarmView

FOREIGN_KEPT = 2
"""Copies of each other stage that a buddy keeps on its disk."""


def buddy(view: SwarmView, stage: int, places: Mapping[PeerId, str] | None = None) -> PeerId | None:
    """Return who keeps copies of a stage's checkpoints.

    A serving replica of the next stage, else of the one before, that does not hold the stage
    itself; one in another place than all who hold it comes first.

    Args:
        places: where peers are, such as the host they listen at; those left out are elsewhere.
    """
    holders = {replica.peer for replica in view.stages[stage]}
    for beside in (stage + 1, stage - 1):
        others = [r.peer for r in view.serving(beside) if r.peer not in holders and not r.leaving]
        if others:
            return min(others, key=lambda peer: _order(stage, peer, holders, places or {}))
    return None


def kept_by(
    view: SwarmView, me: PeerId, places: Mapping[PeerId, str] | None = None
) -> tuple[int, ...]:
    """Return the stages whose buddy is ``me``."""
    stages = range(len(view.stages))
    return tuple(stage for stage in stages if buddy(view, stage, places) == me)


def is_beside(view: SwarmView, me: PeerId, stage: int) -> bool:
    """Whether we serve a stage next to this one."""
    return any(r.peer == me for beside in (stage - 1, stage + 1) for r in view.serving(beside))


def due_version(view: SwarmView, stage: int, every: int, steps: int) -> int:
    """Return the newest version of which the stage's replicas write a checkpoint; 0: none yet.

    Args:
        every: steps between two checkpoints; ``steps``: of the whole run, whose end is saved too.
    """
    committed = view.committed(stage)
    return committed if committed >= steps else committed - committed % every


def complete_version(view: SwarmView, every: int, steps: int) -> int:
    """Return the newest version that every stage has reached and writes to disk; 0: none."""
    stages = range(len(view.stages))
    return min((due_version(view, stage, every, steps) for stage in stages), default=0)


def _order(
    stage: int, peer: PeerId, holders: set[PeerId], places: Mapping[PeerId, str]
) -> tuple[bool, bytes]:
    occupied = {places[holder] for holder in holders if holder in places}
    return places.get(peer) in occupied, rank("buddy", stage, peer)
