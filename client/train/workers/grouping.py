"""Whether the ranks of this volunteer's worker may cut a stage that does not fit one device."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
from msgspec import UNSET

from client.config import Settings
from model_zoo.specs.model import ModelSpec
from protocol.manifest import Manifest

_HOST_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class Grouping:
    """The ranks.

    Fields:
        ranks: their number; 1: there is no group.
        host_bytes: memory beside that of the ranks, for what the first one keeps of a stage that is
            cut; 0: it lies in theirs.
    """

    ranks: int = 1
    host_bytes: int = 0

    def why_uncut(self, manifest: Manifest) -> str:
        """Return why stages cannot be cut over the ranks; empty: they can."""
        return why_uncut(
            manifest.model,
            ranks=self.ranks,
            sequences=manifest.sequences_per_microbatch,
            delayed=manifest.delayed,
            whole=manifest.stage_count == 1,
        )


ALONE = Grouping()


def why_uncut(model: ModelSpec, *, ranks: int, sequences: int, delayed: bool, whole: bool) -> str:
    """Return why stages of a model cannot be cut over ranks; empty: they can.

    Args:
        model: the whole model.
        ranks: over which.
        sequences: of a microbatch.
        delayed: whether updates are delayed by one step.
        whole: whether there is only one stage.
    """
    if ranks == 1:
        return "there is one device"
    if model.lora is not UNSET:
        return "what is frozen beside adapters is not cut"
    if delayed:
        return "updates are delayed by one step, which needs two points of each parameter"
    if whole and model.tied is True:
        return "the only stage's output projection is its embedding"
    if sequences < ranks:
        return f"a microbatch has {sequences} sequences, and each device needs at least one"
    return ""


def grouping(settings: Settings, *, has_host: bool) -> Grouping:
    """Return the owner's devices, which may share a stage now.

    Args:
        settings: the owner's.
        has_host: whether GPUs compute, and their host has memory of its own.
    """
    free_bytes = int(_HOST_SHARE * psutil.virtual_memory().available) if has_host else 0
    return Grouping(settings.ranks, free_bytes)
