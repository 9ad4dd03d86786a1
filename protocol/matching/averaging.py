"""What averaging a second stage adds to a step, and whether the stage is worth it.

The answer does not depend on who already holds two, so members do not wait for one another.
"""

from __future__ import annotations

from dataclasses import dataclass

from model_zoo.specs.codec import CODECS
from protocol.manifest import Manifest, StageCost

MICRO = 1_000_000
WORK_PER_PARAMETER = 2000.0
"""Computing that averaging takes of a replica, in the FLOP of a matrix product that take as long:
an estimate from one run (README)."""
WORTH = 0.8
"""A second stage may add so much to a step: where members are so few that it is the only other
replica, a death without it undoes all steps since the last checkpoint."""
DROP = 1.3
"""A second stage that adds more than this is given up: what is between is noise."""


@dataclass(frozen=True, slots=True)
class Averaging:
    """The averaging of a run."""

    microbatches: int
    """Per step."""
    bytes_per_parameter: float
    """On the wire, of a contribution."""

    @classmethod
    def of(cls, manifest: Manifest) -> Averaging:
        """Return the averaging of a swarm."""
        return cls(
            manifest.microbatches_per_step,
            CODECS[manifest.averaging_codec].bytes_per_number,
        )

    def added(self, cost: StageCost, bytes_per_s: float, flops: float, level: float) -> float:
        """Return what averaging a second stage adds to a step, in steps without it.

        That is at most a round of both stages, each between two replicas.

        Args:
            cost: of the second stage.
            bytes_per_s: the slower direction of its holder's line.
            flops: of its holder.
            level: lambda, in micro-microbatches per second.
        """
        if not (bytes_per_s > 0 and flops > 0):
            return float("inf")
        round_s = self.bytes_per_parameter / bytes_per_s + WORK_PER_PARAMETER / flops
        return 2 * cost.parameters * round_s * level / (self.microbatches * MICRO)
