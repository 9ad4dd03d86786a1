"""What this volunteer's devices have for a stage, beside the memory of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import psutil

from client.config import Settings

_HOST_SHARE = 0.85
PINNED = 2
"""Pinned memory may be rounded up to so many times what is asked for."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of one worker.

    Fields:
        ranks: their number; 1: there is no group.
        host_bytes: memory beside theirs, for vectors that are offloaded; 0: there is no other.
        offload: whether vectors lie there: always, never, or where a stage does not fit otherwise.
    """

    ranks: int = 1
    host_bytes: int = 0
    offload: Literal["auto", "on", "off"] = "off"

    def can_offload(self, size_bytes: int) -> bool:
        """Whether vectors of so many bytes may lie with the host; those of a group do not."""
        allowed = self.offload != "off" and self.ranks == 1 and self.host_bytes > 0
        return allowed and self.can_hold(size_bytes)

    def can_hold(self, size_bytes: int) -> bool:
        """Whether the host has room for vectors of so many bytes."""
        return PINNED * size_bytes <= self.host_bytes


ONE = Devices()


def devices_now(settings: Settings, *, has_host: bool) -> Devices:
    """Return what the owner's devices have for a stage now.

    Args:
        settings: the owner's.
        has_host: whether GPUs compute, and their host has memory of its own.
    """
    free_bytes = int(_HOST_SHARE * psutil.virtual_memory().available) if has_host else 0
    return Devices(settings.ranks, free_bytes, settings.offload)
