"""A simulated volunteer's disk: it survives the process, unless a fault takes the disk, too."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from protocol.recovery.choice import SEED
from protocol.recovery.evidence import Kept
from protocol.recovery.stored import Copy, Lineage

KEEP = 3
"""Checkpoints kept of one stage."""


@dataclass
class Disk:
    """The lineage last followed, and checkpoints by stage and version.

    A checkpoint is the result of ``SimWorker.save``: the exact arithmetic's name of a version,
    which is its hash.
    """

    lineage: Lineage = SEED
    checkpoints: dict[tuple[int, int], str] = field(default_factory=dict)
    evidence: tuple[Kept, float] = (Kept(), 0.0)
    """The evidence of the run, and the time of its writing."""

    def write(
        self, stage: int, version: int, saved: str, protected: Collection[tuple[int, int]]
    ) -> None:
        """Keep a checkpoint, the newest few of its stage, and those that others rely on."""
        self.checkpoints[stage, version] = saved
        for key in sorted(k for k in self.checkpoints if k[0] == stage)[:-KEEP]:
            if key not in protected:
                del self.checkpoints[key]

    def begin(self, lineage: Lineage) -> None:
        """Another lineage begins: newer checkpoints belong to the one that ended."""
        self.lineage = lineage
        self.checkpoints = {k: v for k, v in self.checkpoints.items() if k[1] <= lineage.version}

    def copies(self) -> list[Copy]:
        """Return the checkpoints in the form of the stored record."""
        return [Copy(s, v, saved.encode()) for (s, v), saved in self.checkpoints.items()]

    def lose(self) -> None:
        """Lose everything."""
        self.lineage, self.checkpoints, self.evidence = SEED, {}, (Kept(), 0.0)
