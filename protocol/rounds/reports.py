"""What a replica reports of its step to whoever leads it, decoded."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.pipeline.ledger import from_bitmap
from protocol.wire.messages import LedgerReport


@dataclass(frozen=True, slots=True)
class Report:
    """A replica's newest ledger report; microbatch ids are those of its step."""

    seq: int
    done: frozenset[int]
    in_flight: frozenset[int]
    promised: int
    state: bytes
    ready: bytes
    """Digest of the promised attempt if the replica is Ready, else empty."""

    @classmethod
    def of(cls, message: LedgerReport, per_step: int) -> Report:
        """Decode a message; ``per_step``: microbatches of a step.

        Raises:
            RemoteProtocolError: a bitmap is not one of so many microbatches.
        """
        return cls(
            message.seq,
            from_bitmap(message.done, message.step, per_step),
            from_bitmap(message.in_flight, message.step, per_step),
            message.promised,
            message.state,
            message.ready,
        )
