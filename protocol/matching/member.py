"""A member as the matching knows it: claims corrected by partners, and the stages it holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from protocol.ids import PeerId, Stage
from protocol.matching.timing import MAX_SESSION_S


@dataclass(frozen=True, slots=True)
class Member:
    """A live member with its capacity claims (its advert, corrected by partners' measurements)."""

    peer: PeerId
    joined_at: float
    """Unix seconds."""
    flops: float
    uplink_bytes_per_s: float
    downlink_bytes_per_s: float
    memory_bytes: float
    held: frozenset[Stage] = frozenset()
    """Stages it serves or fetches."""
    measured_s: float = 0.0
    """How long partners have measured it; claims are capped at 2 x median before 5 minutes."""
    session_s: float = MAX_SESSION_S
    """Expected rest of its session."""
    ineligible: frozenset[Stage] = frozenset()
    """Stages it says it cannot serve."""
    seats: int = 2
    """Stages it is willing to hold; its memory decides too."""
    home: Stage | None = None
    """The stage of its first seat; who holds one stage only need not say."""
    second: Stage | None = None
    """The stage beside its home that its second seat holds."""
    fetching: frozenset[Stage] = frozenset()
    """Those of ``held`` that it does not serve yet."""
    may_decide: bool = True
    """Whether it may be a steward; not if those who would work with it have lost it."""

    @property
    def home_stage(self) -> Stage | None:
        """The stage that its first seat serves or fetches."""
        if self.home is not None or len(self.held) != 1:
            return self.home
        return next(iter(self.held))

    @property
    def claim(self) -> tuple[float, float, float]:
        """What it says of its speed: FLOP/s, uplink and downlink bytes/s; NaN counts as 0."""
        said = (self.flops, self.uplink_bytes_per_s, self.downlink_bytes_per_s)
        flops, uplink, downlink = (0.0 if math.isnan(value) else value for value in said)
        return (flops, uplink, downlink)
