"""What peers that hear the same may share: the board, the records of full epochs, the roll.

On the network every peer has its own. A simulation of thousands of peers to whom all records come
at the same time gives them one, so that what follows from a record is derived once.
"""

from __future__ import annotations

from protocol.ids import PeerId
from protocol.manifest import Manifest
from protocol.matching.board import Board
from protocol.matching.context import Context
from protocol.matching.design import FULL, Design
from protocol.matching.exchange.registry import Registry
from protocol.matching.population import Population, of_nobody


class Common:
    """Board, registry and roll of one peer, or of many that are simulated together."""

    def __init__(self, context: Context) -> None:
        self.board = context.board
        self.registry = Registry(context)
        self.last_members = context.last_members
        self._context = context

    @classmethod
    def of_many(cls, manifest: Manifest, wall_offset_s: float, design: Design = FULL) -> Common:
        """Return what many simulated peers share; ``see`` shows it the view they share."""
        population = of_nobody(manifest, design)
        board = Board(manifest.stage_count)
        return cls(Context(PeerId(""), population, board, wall_offset_s))

    def see(self, population: Population, now: float) -> None:
        """Take the view that the peers share."""
        self._context.population = population
        self.board.observe(population, self._context.wall_s(now))
