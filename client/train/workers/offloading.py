"""The slower memory that a stage's vectors may be offloaded to: a GPU's host, and the disk."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from client.compute.requests import Offload
from client.config import Settings
from protocol.manifest import Manifest

_HOST_SHARE = 0.5
"""Of the host's free memory: pinned memory may be rounded up to twice what is asked for."""
_DISK_SHARE = 0.9
"""Of the free disk: checkpoints need some as well."""


@dataclass(frozen=True, slots=True)
class SlowMemory:
    """A place for vectors."""

    kind: Offload
    size_bytes: int
    """How much of it may be used."""
    folder: str = ""


@dataclass(frozen=True, slots=True)
class Offloading:
    """Where vectors may be offloaded to, the fastest first; nowhere by default."""

    places: Sequence[SlowMemory] = ()
    always: bool = False
    """Whether they are offloaded even where they would fit beside the parameters."""

    def place_for(self, size_bytes: int) -> SlowMemory | None:
        """Return the fastest place with so much room; None: there is none."""
        return next((each for each in self.places if size_bytes <= each.size_bytes), None)


NOWHERE = Offloading()


def offloading(settings: Settings, folder: Path, *, has_host: bool) -> Offloading:
    """Return where this machine may offload vectors to now; the ranks of a group offload none.

    Args:
        settings: the owner's.
        folder: where files may lie; it need not exist yet.
        has_host: whether a GPU computes, and its host has memory of its own.
    """
    if settings.offload == "off" or settings.ranks > 1:
        return NOWHERE
    places = []
    if has_host:
        free_bytes = int(psutil.virtual_memory().available)
        places.append(SlowMemory("memory", int(_HOST_SHARE * free_bytes)))
    places.append(SlowMemory("disk", int(_DISK_SHARE * _free_bytes(folder)), str(folder)))
    return Offloading(tuple(places), always=settings.offload == "on")


def _free_bytes(folder: Path) -> int:
    for each in (folder, *folder.parents):
        try:
            return shutil.disk_usage(each).free
        except OSError:
            continue
    return 0


def advertised_bytes(manifest: Manifest, usable_bytes: int, fits: Sequence[bool]) -> int:
    """Return the memory to advertise: with offloading a stage fits into less than it is said to
    need, and the matching compares what it needs with what is advertised.

    Args:
        manifest: of the swarm.
        usable_bytes: memory for stages.
        fits: whether each stage fits by itself.
    """
    needs = (int(cost.memory_bytes) for cost, fit in zip(manifest.stages, fits, strict=True) if fit)
    return max([usable_bytes, *needs])
