"""How the ranks of this volunteer's worker may share a stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import psutil

from client.compute.cuttable import why_not
from client.compute.requests import Inside
from client.config import Settings
from client.errors import ExitCode, UserError
from protocol.manifest import Manifest

_HOST_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class Grouping:
    """The ranks, and what their owner says of them.

    Fields:
        ranks: their number; 1: there is no group.
        inside: how they share a stage; `auto`: each has all of it, if it fits so.
        host_bytes: memory beside that of the ranks, for what the first one keeps of a stage that is
            cut; 0: it lies in theirs.
    """

    ranks: int = 1
    inside: Inside | Literal["auto"] = "auto"
    host_bytes: int = 0

    def ways(self, manifest: Manifest, stage: int) -> list[Inside]:
        """Return how they may share a stage, the one to be tried first in front.

        `auto` cuts only what does not fit whole: then there is no traffic inside. It cuts by rows
        first: parameters come ahead of their use, while tensor parallelism waits for its sums twice
        a block. That is left for microbatches of fewer sequences than ranks.
        """
        if self.ranks == 1:
            return ["replicas"]
        if self.inside != "auto":
            return [self.inside]
        cut: list[Inside] = ["fsdp", "tp"]
        able = [way for way in cut if not self.why_not(manifest, stage, way)]
        return ["replicas", *able[:1]]

    def why_not(self, manifest: Manifest, stage: int, inside: Inside) -> str:
        """Return why a stage cannot be shared so; empty: it can."""
        return why_not(
            manifest.model,
            inside,
            ranks=self.ranks,
            sequences=manifest.sequences_per_microbatch,
            delayed=manifest.delayed_update,
            whole=manifest.stage_count == 1,
        )


ALONE = Grouping()


def grouping(settings: Settings, *, has_host: bool) -> Grouping:
    """Return how the owner's devices may share a stage now.

    Args:
        settings: the owner's.
        has_host: whether GPUs compute, and their host has memory of its own.
    """
    free_bytes = int(_HOST_SHARE * psutil.virtual_memory().available) if has_host else 0
    return Grouping(settings.ranks, settings.inside, free_bytes)


def check_inside(settings: Settings) -> None:
    """Check that there are devices to share a stage.

    Raises:
        UserError: there is only one.
    """
    if settings.inside in ("fsdp", "tp") and settings.ranks == 1:
        words = f"--inside {settings.inside} needs several devices, and only one is chosen"
        hint = "name them, as in --devices 0,1, or leave --inside out"
        raise UserError(words, hint, ExitCode.CONFIG)
