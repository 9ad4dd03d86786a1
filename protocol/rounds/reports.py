"""Combines the members' reports for the leader: their ledgers, and the loss of a step.

A member reports the sum of its own microbatches' losses. It can be checked only by computing them.
The loss is for people, and no machine uses it. But one member's false number, 0 or 5e26, must not
be shown to all: sums that cannot be right do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from protocol.ids import PeerId
from protocol.pipeline.ledger import bits_of, from_bitmap
from protocol.wire.messages import LedgerReport

DIGEST_BYTES: Final = 32


def state_digest(state_hash: str) -> bytes:
    """Return what stands for a version's state in messages: 16 bytes, from its hex hash."""
    return hashlib.blake2b(state_hash.encode(), digest_size=16).digest()


@dataclass(frozen=True)
class Report:
    """A replica's newest ledger report; its ids are decoded only where they are asked for."""

    seq: int
    step: int
    per_step: int
    ledger: bytes
    held: bytes
    promised: int
    state: bytes
    ready: bytes
    """Digest of the promised attempt if the replica is Ready, else empty."""
    knows: frozenset[PeerId]
    """Whom the replica vouches for in the stages beside."""
    bits: int
    """The ledger as one number; bit i is the i-th microbatch of the step."""

    @cached_property
    def done(self) -> frozenset[int]:
        """Microbatches counted."""
        return from_bitmap(self.ledger, self.step, self.per_step)

    @cached_property
    def in_flight(self) -> frozenset[int]:
        """Microbatches held and not counted."""
        return from_bitmap(self.held, self.step, self.per_step)

    @classmethod
    def of(cls, message: LedgerReport, per_step: int) -> Report:
        """Decode a message; ``per_step``: microbatches of a step.

        Raises:
            RemoteProtocolError: a bitmap is not one of so many microbatches.
        """
        bits = bits_of(message.done, message.step, per_step)
        bits_of(message.in_flight, message.step, per_step)
        return cls(
            message.seq,
            message.step,
            per_step,
            message.done,
            message.in_flight,
            message.promised,
            message.state,
            message.ready,
            frozenset(map(PeerId, message.knows)),
            bits,
        )


def unfinished(
    reports: Mapping[PeerId, Report], members: Sequence[PeerId], me: PeerId, own_attempt: int
) -> tuple[int, bytes] | None:
    """Return attempt and digest of a round that a lost leader may have decided, or None.

    We must be Ready for it ourselves: a sibling's claim alone closes no step. It must not be our
    own attempt: we know that we have not decided it, and a member that was not Ready may never be.

    Args:
        reports: newest report of each replica.
        members: replicas considered.
        me: ourselves.
        own_attempt: our newest attempt as leader.
    """
    attempt = max(reports[p].promised for p in members)
    ready = {r.ready for r in (reports[p] for p in members) if r.promised == attempt}
    digest = ready.pop() if len(ready) == 1 else b""
    own = reports.get(me)
    ours = own is not None and (own.promised, own.ready) == (attempt, digest)
    ours &= attempt != own_attempt
    return (attempt, digest) if ours and len(digest) == DIGEST_BYTES else None


USUAL_RATIO: Final = 4.0
"""Means of different microbatches of one step differ by less."""


def vouched_sum(
    shares: Sequence[tuple[float, int]], own: int | None = None, before: float | None = None
) -> float:
    """Return the sum of the members' losses; a member whose mean is far from what most say counts
    with that.

    Args:
        shares: of every member, its sum and how many microbatches it is of.
        own: which of them is ours: of two that do not agree we go by our own.
        before: mean of the last step: if we have no own, we go by the one that is nearer to it.
    """
    means = sorted(total / count for total, count in shares if count)
    if not means:
        return 0.0
    middle = means[(len(means) - 1) // 2]
    if len(means) <= 2 and own is not None and shares[own][1]:
        middle = shares[own][0] / shares[own][1]
    elif len(means) == 2 and before is not None:
        middle = min(means, key=lambda mean: abs(mean - before))
    usual = [
        total if _is_usual(total, count, middle) else middle * count for total, count in shares
    ]
    return sum(usual)


def _is_usual(total: float, count: int, middle: float) -> bool:
    if not count:
        return total == 0.0
    low, high = sorted((middle / USUAL_RATIO, middle * USUAL_RATIO))
    return low <= total / count <= high
