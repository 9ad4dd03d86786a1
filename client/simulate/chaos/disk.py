"""What a volunteer has written down: it outlives the process, unless the disk is lost too."""

from __future__ import annotations

from dataclasses import dataclass, field

KEEP = 3
"""Checkpoints kept of one stage."""


@dataclass
class Disk:
    """Checkpoints by stage, era and version; the value is what ``SimWorker.save`` returned."""

    checkpoints: dict[tuple[int, int, int], str] = field(default_factory=dict)

    def write(self, stage: int, era: int, version: int, saved: str) -> None:
        """Keep a checkpoint, and the newest few of its stage."""
        self.checkpoints[stage, era, version] = saved
        for key in sorted(k for k in self.checkpoints if k[0] == stage)[:-KEEP]:
            del self.checkpoints[key]

    def lose(self) -> None:
        """Nothing is left."""
        self.checkpoints = {}
