"""One audit, from its auditor's side: from the draw to the result.

| in | commitment | list | tensors | recomputed | segments | compared | parts | summed |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| awaits commitment | asks for the list | - | - | - | - | - | - | - |
| awaits list | - | asks for what it names | - | - | - | - | - | - |
| recomputes | - | - | next microbatch | next, or compares | kept | - | - | - |
| compares | - | - | - | - | compares | judged; asks for the parts | - | - |
| collects | - | - | - | - | - | - | sums again | - |
| sums | - | - | - | - | - | - | - | judged |
| over | - | - | - | - | - | - | - | - |

What does not come is asked for again every 3 s; whoever refuses, or sends nothing for 10 s, is
*refused*.

If the contribution agrees, a sum that the member has broadcast is made again from the members'
parts. All agree on the digests of these and of the sum, for they are in what all were Ready for. So
the member can show no other parts than it has accepted, and nobody can make it look false by
contributing something else than it signed. Our own part need not be shown. Replicas may add in
another order within a robust rule's norms, so sums are compared within a tolerance.

A payload must have the digest that the list names, the list must have the root that was signed, and
it must list exactly the microbatches that the plan counts for the member. Otherwise the member has
signed one thing and shows another: it is refused. Its segments must be the ones that all members
of the plan agree on; otherwise the member has contributed something else than it signed. An audit
that fails through our own fault (memory, a worker that died, another version) is void and counts
for nothing.

State: how far the audit is and what is here. Tensors are named, never held; ``now`` is monotonic
seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from protocol.audit.commitment import CONTENTS, Contents, Statement, root_of
from protocol.audit.record import Grade, grade, judge
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.pipeline.effects import (
    CompareTask,
    PayloadKey,
    PayloadName,
    RecomputeTask,
    SumAgainTask,
)

AHEAD = 2
"""Microbatches whose tensors are asked for at a time; a step may have thousands."""
PATIENCE_S = 10.0
"""For anything that is asked for, since anything came last."""
ASK_AGAIN_S = 3.0


class Stage(Enum):
    """How far an audit is."""

    COMMITMENT = "awaits the commitment"
    LIST = "awaits the list"
    RECOMPUTING = "recomputes"
    COMPARING = "compares"
    COLLECTING = "collects the parts of a sum"
    SUMMING = "sums again"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class AskList:
    """Ask the member for its commitment, or for the list of it."""

    member: PeerId
    name: Literal["commitment", "list"]


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the member for a payload; its bytes have to have the digest."""

    member: PeerId
    key: PayloadKey
    digest: bytes


@dataclass(frozen=True, slots=True)
class Judged:
    """The audit is over; ``grade`` is None if it was void."""

    member: PeerId
    step: int
    grade: Grade | None
    words: str


AuditEffect = AskList | Ask | RecomputeTask | CompareTask | SumAgainTask | Judged


@dataclass(frozen=True, slots=True)
class SumSubject:
    """A segment that the audited member has summed, by the plan that was committed.

    Fields:
        segment: its number.
        parts: the members of the plan, in order, with the digests of what they contributed.
        microbatches: how many each part is the sum of.
    """

    segment: int
    parts: tuple[tuple[PeerId, bytes], ...]
    microbatches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of an audit, by the plan that was committed.

    Fields:
        counted: microbatches that it counts for the member; none: only its sum is checked.
        bounds: of its segments.
        segments: digests of its contribution's segments, which all members of the plan agree on.
        held: those of its segments that were sent to us before the commit.
        tensors: what is shown of a microbatch (``tensors_of``).
        coarse: whether the averaging codec loses anything.
        mixed: whether passes compute in few bits.
        sum: a segment that the member owns; None: it owns none.
    """

    member: PeerId
    stage: int
    step: int
    attempt: int
    era: int
    counted: frozenset[int]
    bounds: tuple[int, ...]
    segments: tuple[bytes, ...]
    held: Collection[int]
    tensors: tuple[PayloadName, ...]
    coarse: bool
    mixed: bool = False
    sum: SumSubject | None = None


class Audit:
    """See the module's docstring. Methods return effects.

    Args:
        subject: what is audited.
        me: our own id; our part of a sum is here.
        usual: the norm that the sum's segment usually has, as the aggregation rule takes it.
        now: when the version was kept.
    """

    def __init__(self, subject: Subject, me: PeerId, usual: float, now: float) -> None:
        self._of, self._me, self._usual, self.state = subject, me, usual, Stage.COMMITMENT
        self._found = ""
        """What the contribution came to, in words."""
        self._root = b""
        self._list = Contents((), ())
        self._waits: dict[PayloadKey, bytes] = {}
        """Payloads that were asked for and are not here, with their digests."""
        self._unasked: list[list[tuple[PayloadKey, bytes]]] = []
        """Payloads that are not asked for yet: of each microbatch, then of the contribution."""
        self._left: list[int] = []
        """Microbatches that are not with the worker yet, the next one first."""
        self._busy = False
        self._boundary = 0.0
        self._until, self._ask_at = now + PATIENCE_S, now + ASK_AGAIN_S

    @property
    def root(self) -> bytes:
        """What the member has signed; empty if that is not here."""
        return self._root

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        computing = self._busy and not self._waits
        over = self.state is Stage.OVER
        return None if over or computing else min(self._until, self._ask_at)

    # --- what the member shows ------------------------------------------------------------------

    def committed(self, statement: Statement, now: float) -> list[AuditEffect]:
        """Take the member's commitment, whose signature is checked; the first one stands."""
        of = self._of
        if self.state is not Stage.COMMITMENT:
            return []
        said = (statement.stage, statement.step, statement.attempt, statement.era)
        if said != (of.stage, of.step, of.attempt, of.era):
            return []
        self._root, self.state = statement.root, Stage.LIST
        self._came(now)
        return [AskList(of.member, "list")]

    def listed(self, encoded: bytes, now: float) -> list[AuditEffect]:
        """Take the list."""
        if self.state is not Stage.LIST:
            return []
        if root_of(encoded) != self._root:
            return self._refused("it shows another list than it has signed")
        try:
            self._list = CONTENTS.parse(encoded)
        except RemoteProtocolError:
            return self._refused("its list is malformed")
        if not self._fits():
            return self._refused("its list is not of what the plan counts for it")
        if self._list.segments != self._of.segments:
            return self._over(Grade.OTHER, Grade.OTHER.value)
        if not self._of.counted:
            return self._collect(now)
        self.state = Stage.RECOMPUTING
        self._came(now)
        self._left = [row.microbatch for row in self._list.microbatches]
        self._unasked = [*self._tensors(), self._segments()]
        asks = [ask for _ in range(AHEAD) for ask in self._ask()]
        return [*asks, *self._go_on()]

    def waits_for(self, key: PayloadKey) -> bool:
        """Whether a payload was asked for and is not here."""
        return key in self._waits

    def shown(self, key: PayloadKey, digest: bytes, now: float) -> list[AuditEffect]:
        """A payload is here and kept under its ``key`` at ``now``; ``digest`` is that of its
        bytes."""
        expected = self._waits.pop(key, None)
        if expected is None:
            return []
        if digest != expected:
            return self._refused(f"its {key.name} {key.item} is not the one of its list")
        self._came(now)
        return self._go_on()

    def refused(self) -> list[AuditEffect]:
        """The member says that it shows nothing."""
        return [] if self.state is Stage.OVER else self._refused("it shows nothing")

    def tick(self, now: float) -> list[AuditEffect]:
        """Ask again, and lose patience in the end."""
        due = self.next_deadline()
        if due is None or now < due:
            return []
        if now >= self._until:
            return self._refused(f"nothing came for {PATIENCE_S:.0f} s")
        self._ask_at = now + ASK_AGAIN_S
        if self.state in (Stage.COMMITMENT, Stage.LIST):
            name: Literal["commitment", "list"]
            name = "list" if self.state is Stage.LIST else "commitment"
            return [AskList(self._of.member, name)]
        return [Ask(self._of.member, key, digest) for key, digest in self._waits.items()]

    def void(self, words: str) -> list[AuditEffect]:
        """The audit cannot go on, by no fault of the member: it has gone, or we cannot compute."""
        return [] if self.state is Stage.OVER else self._over(None, words)

    # --- what the worker finds ------------------------------------------------------------------

    def recomputed(self, activation: float, gradient: float, now: float) -> list[AuditEffect]:
        """A microbatch is in our sum at ``now``: relative distances of the member's ``activation``
        and ``gradient`` from ours."""
        if self.state is not Stage.RECOMPUTING:
            return []
        self._busy = False
        self._came(now)
        self._boundary = max(self._boundary, activation, gradient)
        return self._go_on()

    def compared(self, deviation: float, along: float, now: float) -> list[AuditEffect]:
        """The contribution was compared with our sum at ``now``: go on with the member's sum."""
        if self.state is not Stage.COMPARING:
            return []
        found = judge(
            self._boundary, deviation, along, coarse=self._of.coarse, mixed=self._of.mixed
        )
        numbers = f"contribution {deviation:.1e}, {along:+.1e} along; tensors {self._boundary:.1e}"
        self._found = f"{found.value}: {numbers}"
        if found is Grade.AGREES and self._of.sum is not None:
            return self._collect(now)
        return self._over(found, self._found)

    def summed(self, deviation: float) -> list[AuditEffect]:
        """The member's sum is so far from ours, relative to ours."""
        of = self._of.sum
        if self.state is not Stage.SUMMING or of is None:
            return []
        found = grade(deviation)
        found = Grade.SUMS if found is Grade.LIES else found
        words = f"sum of segment {of.segment} {deviation:.1e} apart"
        return self._over(found, f"{self._found or found.value}; {words}")

    def not_computed(self, error: str) -> list[AuditEffect]:
        """A task failed: by what the member has shown, or by our own doing."""
        if self.state is Stage.OVER:
            return []
        if error in ("codec", "shape", "poisoned"):
            return self._refused(f"what it shows cannot be computed: {error}")
        return self._over(None, f"it could not be computed here: {error}")

    # --- within ---------------------------------------------------------------------------------

    def _came(self, now: float) -> None:
        self._until, self._ask_at = now + PATIENCE_S, now + ASK_AGAIN_S

    def _fits(self) -> bool:
        """Whether the list is of what the plan counts, with all that is to be shown of it."""
        of, rows = self._of, self._list.microbatches
        ids = [row.microbatch for row in rows]
        whole = all(len(row.digests) == len(of.tensors) for row in rows)
        return (
            whole
            and ids == sorted(of.counted)
            and len(self._list.segments) == len(of.bounds) - 1
            and all(self._list.segments[i] for i in self._active())
        )

    def _active(self) -> Sequence[int]:
        bounds = self._of.bounds
        return [i for i in range(len(bounds) - 1) if bounds[i + 1] > bounds[i]]

    def _key(self, name: PayloadName, item: int) -> PayloadKey:
        return PayloadKey(self._of.step, name, item, self._of.attempt, self._of.member)

    def _keys(self, microbatch: int) -> tuple[PayloadKey, ...]:
        return tuple(self._key(name, microbatch) for name in self._of.tensors)

    def _ask(self) -> list[AuditEffect]:
        """Ask for what comes next, if anything does."""
        wanted = self._unasked.pop(0) if self._unasked else []
        self._waits.update(wanted)
        return [Ask(self._of.member, key, digest) for key, digest in wanted]

    def _tensors(self) -> list[list[tuple[PayloadKey, bytes]]]:
        return [
            list(zip(self._keys(row.microbatch), row.digests, strict=True))
            for row in self._list.microbatches
        ]

    def _segments(self) -> list[tuple[PayloadKey, bytes]]:
        """Return the segments that were not sent to us; those that we hold need not be shown."""
        rest = [i for i in self._active() if i not in self._of.held]
        return [(self._key("segment", i), self._list.segments[i]) for i in rest]

    def _go_on(self) -> list[AuditEffect]:
        if self.state is Stage.COLLECTING and not self._waits:
            return self._sum_again()
        if self.state is not Stage.RECOMPUTING or self._busy:
            return []
        if not self._left:
            return self._compare()
        shown = self._keys(self._left[0])
        if any(key in self._waits for key in shown):
            return []
        self._busy = True
        return [RecomputeTask(self._of.step, self._left.pop(0), shown), *self._ask()]

    def _compare(self) -> list[AuditEffect]:
        if self._waits or self._unasked:
            return self._ask()
        self.state, self._busy = Stage.COMPARING, True
        of, active = self._of, set(self._active())
        segments = tuple(
            self._key("segment", i) if i in active else None for i in range(len(of.bounds) - 1)
        )
        return [CompareTask(of.step, of.attempt, of.bounds, segments)]

    def _collect(self, now: float) -> list[AuditEffect]:
        """Ask the owner of a sum for what it has summed."""
        of = self._of.sum
        if of is None:
            return self._over(None, "it has contributed nothing, and owns no sum")
        self.state, self._busy = Stage.COLLECTING, False
        self._came(now)
        self._waits = {self._part(peer): part for peer, part in of.parts if peer != self._me}
        return [Ask(self._of.member, key, digest) for key, digest in self._waits.items()]

    def _part(self, peer: PeerId) -> PayloadKey:
        segment = self._of.sum.segment if self._of.sum else 0
        return PayloadKey(self._of.step, "segment", segment, self._of.attempt, peer)

    def _sum_again(self) -> list[AuditEffect]:
        of, total = self._of, self._of.sum
        if total is None:
            return []
        self.state, self._busy = Stage.SUMMING, True
        i, parts = total.segment, tuple(self._part(peer) for peer, _ in total.parts)
        size = of.bounds[i + 1] - of.bounds[i]
        sent = PayloadKey(of.step, "reduced", i, of.attempt, of.member)
        again = SumAgainTask(of.step, i, parts, size, total.microbatches, self._usual, sent)
        return [again]

    def _refused(self, words: str) -> list[AuditEffect]:
        return self._over(Grade.REFUSED, words)

    def _over(self, found: Grade | None, words: str) -> list[AuditEffect]:
        self.state = Stage.OVER
        self._waits.clear()
        return [Judged(self._of.member, self._of.step, found, words)]
