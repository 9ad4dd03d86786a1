"""A byte budget that refills with time: how much one link may cost us."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Budget:
    """``burst_bytes`` at once, ``rate_bytes_per_s`` in the long run; full at ``refilled``."""

    burst_bytes: float
    rate_bytes_per_s: float
    refilled: float
    """Monotonic seconds of the last refill."""
    left_bytes: float = -1.0

    def __post_init__(self) -> None:
        self.left_bytes = self.burst_bytes

    def spend(self, size_bytes: int, now: float) -> bool:
        """Take bytes out if they are there."""
        refill = max(0.0, now - self.refilled) * self.rate_bytes_per_s
        self.left_bytes = min(self.burst_bytes, self.left_bytes + refill)
        self.refilled = max(self.refilled, now)
        if self.left_bytes < size_bytes:
            return False
        self.left_bytes -= size_bytes
        return True
