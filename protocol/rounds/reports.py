"""Combines the members' reports for the leader: their ledgers, and the loss of a step.

A member's loss can be checked only by computing it, and no machine uses it. But one member's false
number, 0 or 5e26, must not be shown to all: sums that cannot be right do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.pipeline.ledger import bits_of
from protocol.wire.messages import LedgerReport


@dataclass(frozen=True)
class Report:
    """A replica's newest ledger report."""

    said: LedgerReport
    bits: int
    """The ledger as one number; bit i is the i-th microbatch of the step."""
    held: int
    """The same of all that it has, those too that it has not counted yet."""

    @property
    def in_flight(self) -> bool:
        """Whether it has any that it has not counted."""
        return self.held != self.bits

    @classmethod
    def of(cls, message: LedgerReport, per_step: int) -> Report:
        """Decode a message.

        Args:
            message: the report.
            per_step: microbatches of a step.

        Raises:
            RemoteProtocolError: a bitmap is not one of so many microbatches.
        """
        bits = bits_of(message.done, message.step, per_step)
        held = bits | bits_of(message.in_flight, message.step, per_step)
        return cls(message, bits, held)


USUAL_RATIO: Final = 4.0
"""Means of different microbatches of one step differ by less."""


def vouched_sum(shares: Sequence[tuple[float, int]], own: int | None = None) -> float:
    """Return the sum of the members' losses; a member whose mean is far from what most say counts
    with that.

    Args:
        shares: of every member, its sum and how many microbatches it is of.
        own: which of them is ours: of two that do not agree we go by our own, if it is of any.
    """
    means = sorted(total / count for total, count in shares if count)
    if not means:
        return 0.0
    middle = means[(len(means) - 1) // 2]
    if len(means) <= 2 and own is not None and shares[own][1]:
        middle = shares[own][0] / shares[own][1]
    usual = [
        total if _is_usual(total, count, middle) else middle * count for total, count in shares
    ]
    return sum(usual)


def _is_usual(total: float, count: int, middle: float) -> bool:
    if not count:
        return total == 0.0
    low, high = sorted((middle / USUAL_RATIO, middle * USUAL_RATIO))
    return low <= total / count <= high
