"""A check of one sum, from its auditor's side: the owner shows what it has summed, and it is summed
again.

| in | a part | all parts | compared | refusal, nothing for 10 s |
| --- | --- | --- | --- | --- |
| collects | kept | sums again | - | refused |
| sums | - | - | judged | refused |
| over | - | - | - | - |

The members of the plan agree on the digests of all parts and of the sum, for these are in what all
were Ready for. So the owner can show no other parts than it has accepted, and no member can make it
look false by contributing something else than it signed. Our own part need not be shown. Replicas
may add in another order within a robust rule's norms, so the sums are compared within the tolerance
of audits, not bit by bit. A check that fails through our own fault is void.

State: how far it is. Parts are named, never held; ``now`` is monotonic seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b

from protocol.audit.audit import ASK_AGAIN_S, PATIENCE_S, Ask, AuditEffect, Judged, Stage
from protocol.audit.record import Grade, grade
from protocol.ids import PeerId
from protocol.pipeline.effects import PayloadKey, SumAgainTask


def root_of_sum(segment: int, digest: bytes) -> bytes:
    """Return the name of a sum in charges: of two segments with equal bytes, one may be wrong."""
    return blake2b(segment.to_bytes(4, "big") + digest, digest_size=32).digest()


@dataclass(frozen=True, slots=True)
class SumSubject:
    """The segment that is summed again, by the plan that was committed.

    Fields:
        member: owner of the segment.
        root: of the sum that it broadcast (``root_of_sum``).
        bounds: of all segments.
        parts: the members of the plan, in order, with the digests of what they contributed.
        microbatches: how many each part is the sum of.
    """

    member: PeerId
    stage: int
    step: int
    attempt: int
    segment: int
    root: bytes
    bounds: tuple[int, ...]
    parts: tuple[tuple[PeerId, bytes], ...]
    microbatches: tuple[int, ...]

    def key(self, peer: PeerId) -> PayloadKey:
        """Return the name of a member's part."""
        return PayloadKey(self.step, "segment", self.segment, self.attempt, peer)


class SecondSum:
    """See the module's docstring. Methods return effects.

    Args:
        subject: what is summed again.
        me: our own id; our part is here.
        usual: the norm that the segment usually has, as the aggregation rule takes it.
        now: when the step was closed.
    """

    def __init__(self, subject: SumSubject, me: PeerId, usual: float, now: float) -> None:
        self._of, self._usual, self.state = subject, usual, Stage.COLLECTING
        self.root = subject.root
        self._waits = {subject.key(peer): part for peer, part in subject.parts if peer != me}
        self._until, self._ask_at = now + PATIENCE_S, now + ASK_AGAIN_S

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        waits = self.state is Stage.COLLECTING
        return min(self._until, self._ask_at) if waits else None

    def begin(self) -> list[AuditEffect]:
        """Ask for what is not here."""
        return [Ask(self._of.member, key, digest) for key, digest in self._waits.items()]

    def waits_for(self, key: PayloadKey) -> bool:
        """Whether a part was asked for and is not here."""
        return key in self._waits

    def shown(self, key: PayloadKey, digest: bytes, now: float) -> list[AuditEffect]:
        """A part is here and kept under its ``key`` at ``now``; ``digest`` is that of its bytes."""
        expected = self._waits.pop(key, None)
        if expected is None:
            return []
        if digest != expected:
            return self._over(Grade.REFUSED, "what it shows is not what was contributed to its sum")
        self._until, self._ask_at = now + PATIENCE_S, now + ASK_AGAIN_S
        return [] if self._waits else self._sum()

    def refused(self) -> list[AuditEffect]:
        """The owner says that it shows nothing."""
        return self._over(Grade.REFUSED, "it shows nothing of its sum")

    def tick(self, now: float) -> list[AuditEffect]:
        """Ask again, and lose patience in the end."""
        due = self.next_deadline()
        if due is None or now < due:
            return []
        if now >= self._until:
            words = f"nothing of its sum came for {PATIENCE_S:.0f} s"
            return self._over(Grade.REFUSED, words)
        self._ask_at = now + ASK_AGAIN_S
        return self.begin()

    def void(self, words: str) -> list[AuditEffect]:
        """The check cannot go on, by no fault of the owner."""
        return self._over(None, words)

    def compared(self, deviation: float) -> list[AuditEffect]:
        """The owner's sum is so far from ours, relative to ours."""
        if self.state is not Stage.COMPARING:
            return []
        found = grade(deviation)
        says = "agrees" if found is Grade.AGREES else "is not that of the contributions"
        where = f"the sum of segment {self._of.segment} {says}"
        return self._over(found, f"{where}: {deviation:.1e} apart")

    def not_computed(self, error: str) -> list[AuditEffect]:
        """The sum could not be made: of what the owner has accepted, or by our own doing."""
        if error in ("codec", "shape", "poisoned"):
            return self._over(Grade.REFUSED, f"what it has summed cannot be summed: {error}")
        return self._over(None, f"the sum could not be made here: {error}")

    def _sum(self) -> list[AuditEffect]:
        of = self._of
        self.state, self._until = Stage.COMPARING, math.inf
        size = of.bounds[of.segment + 1] - of.bounds[of.segment]
        parts = tuple(of.key(peer) for peer, _ in of.parts)
        sent = PayloadKey(of.step, "reduced", of.segment, of.attempt, of.member)
        counts = of.microbatches
        return [SumAgainTask(of.step, of.segment, parts, size, counts, self._usual, sent)]

    def _over(self, found: Grade | None, words: str) -> list[AuditEffect]:
        if self.state is Stage.OVER:
            return []
        self.state = Stage.OVER
        self._waits.clear()
        return [Judged(self._of.member, self._of.step, found, words)]
