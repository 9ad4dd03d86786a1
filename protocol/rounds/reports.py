"""The replicas' ledgers of a step, as they report them to its leader."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from protocol.pipeline.ledger import bits_of, from_bitmap
from protocol.wire.messages import LedgerReport


@dataclass(frozen=True)
class Report:
    """A replica's newest ledger report; its ids are decoded only where they are asked for."""

    said: LedgerReport
    per_step: int
    bits: int
    """The ledger as one number; bit i is the i-th microbatch of the step."""
    held: int
    """The same of all that it has, those too that it has not counted yet."""
    ever: int = 0
    """The same of all its reports of the step: what it had once and has not any more, too."""

    @cached_property
    def done(self) -> frozenset[int]:
        """Microbatches counted."""
        return from_bitmap(self.said.done, self.said.step, self.per_step)

    @property
    def in_flight(self) -> bool:
        """Whether it has any that it has not counted."""
        return self.held != self.bits

    @classmethod
    def of(cls, message: LedgerReport, per_step: int, before: Report | None = None) -> Report:
        """Decode a message.

        Args:
            message: the report.
            per_step: microbatches of a step.
            before: the replica's last report of the step.

        Raises:
            RemoteProtocolError: a bitmap is not one of so many microbatches.
        """
        bits = bits_of(message.done, message.step, per_step)
        held = bits | bits_of(message.in_flight, message.step, per_step)
        ever = bits | (0 if before is None else before.ever)
        return cls(message, per_step, bits, held, ever)
