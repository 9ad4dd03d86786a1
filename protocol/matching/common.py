"""State that peers with equal inputs can share: board and last members.

On the network every peer has its own. A simulation in which thousands of peers receive all records
at the same time uses one for all, so that each record is evaluated once.
"""

from __future__ import annotations

from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.matching.board import Board
from protocol.matching.context import Context
from protocol.matching.design import FULL, Design
from protocol.matching.population import Population, of_nobody


class Common:
    """Board, registry and last members of one peer, or of many simulated together."""

    def __init__(self, context: Context) -> None:
        self.board = context.board
        self.last_members = context.last_members
        self._context = context

    @classmethod
    def of_many(cls, manifest: Manifest, wall_offset_s: float, design: Design = FULL) -> Common:
        """Return the state that many simulated peers share; ``see`` sets their view.

        Args:
            manifest: of the simulated swarm.
            wall_offset_s: Unix time minus the monotonic clock, seconds.
            design: the ingredients in force.
        """
        population = of_nobody(manifest, design)
        board = Board(manifest.stage_count)
        return cls(Context(PeerId(""), population, board, wall_offset_s))

    def see(self, population: Population, now: float) -> None:
        """Take the view that the peers share."""
        self._context.population = population
        self.board.observe(population, self._context.wall_s(now))
