"""Pledges: the digests this peer has signed in full epochs, so that it never signs two that differ.

It signs at most one digest per (attempt, stage, decision or plan), whatever its role: the box that
published a plan, the chair that decided, or a candidate that attested either.
"""

from __future__ import annotations

from protocol.ids import Stage
from protocol.matching.exchange.bodies import Round

MAX_PLEDGES = 4096

Matter = tuple[Round, Stage, bool]


class Pledges:
    """Signed digests, the oldest epochs forgotten first."""

    def __init__(self) -> None:
        self._signed: dict[Matter, bytes] = {}
        self._forgotten: Round | None = None

    def sign(self, round_: Round, stage: Stage, digest: bytes, *, decision: bool) -> bool:
        """Record a signature; False if another digest was signed, or may have been.

        Args:
            round_: the attempt.
            stage: the stage signed for.
            digest: what is signed, 32 bytes.
            decision: True for the chair's decision, False for a stage's plan.
        """
        if self._forgotten is not None and round_ <= self._forgotten:
            return False
        matter = (round_, stage, decision)
        if self._signed.setdefault(matter, digest) != digest:
            return False
        if len(self._signed) > MAX_PLEDGES:
            oldest = min(self._signed)
            del self._signed[oldest]
            self._forgotten = oldest[0]
        return True

    def has_signed(self, round_: Round, stage: Stage, *, decision: bool) -> bool:
        """Tell whether any digest was signed for this attempt, stage and kind.

        Args:
            round_: epoch and attempt.
            stage: the stage.
            decision: whether a decision is meant, or an attestation.
        """
        return (round_, stage, decision) in self._signed
