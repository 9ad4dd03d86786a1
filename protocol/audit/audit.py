"""One audit, once the worker has a copy of the version.

An audit begins with the member's list, and then has *moves*: a task of the worker, and what the
member has to show for it. Each microbatch is computed again, their sum is compared with the
contribution, and, if that agrees, a sum that the member has broadcast is made again from all
members' parts. What does not come is asked for again every 3 s; whoever shows something else than
it has committed to, or nothing for 10 s, is *refused*.

The list must have the root that was signed, and be of exactly the microbatches that the plan counts
for the member. Digests of contributions and of sums are in what all members were Ready for. So the
member can show no other parts than it has accepted, and nobody can make it look false by
contributing something else than it signed. Our own part need not be shown. Replicas may add in
another order within a robust rule's norms, so sums are compared within a tolerance.

An audit that fails through our own fault (memory, a worker that died, another version) is void and
counts for nothing. Once it is judged, it is over: nothing is handed to it any more.

State: the moves that are left, and what is not here yet. Tensors are named, never held; ``now`` is
monotonic seconds.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from protocol.audit.commitment import listed
from protocol.audit.record import Grade, grade, judge
from protocol.audit.terms import AuditTerms
from protocol.effects import Send
from protocol.ids import PeerId
from protocol.pace import ANSWER_S, HEARD_S, LOST_S
from protocol.pipeline.effects import (
    AuditTask,
    CompareTask,
    Outcome,
    PassTask,
    PayloadKey,
    PayloadName,
    ReduceTask,
)
from protocol.pipeline.ledger import count_of
from protocol.wire.messages import AuditRequest, Commitment, Plan

AHEAD = 2
"""Moves that payloads are asked for at a time; a step may have thousands."""
PATIENCE_S = LOST_S + HEARD_S / 2
"""For anything that is asked for, since anything came last: a payload on a home's line."""
ASK_AGAIN_S = HEARD_S - ANSWER_S
"""Three times in that patience, so that an audit stands losses, and seldom enough for the upload of
whoever is slow."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The audit is over; ``grade`` is None if it was void."""

    grade: Grade | None
    words: str


AuditEffect = Send | AuditTask | Judged


@dataclass(frozen=True, slots=True)
class _Move:
    """A task, and what the member has to show for it, with the digests."""

    task: PassTask | CompareTask | ReduceTask
    shown: Mapping[PayloadKey, bytes]


class Audit:
    """See the module's docstring. Methods return effects.

    Args:
        plan: that was committed.
        member: whose contribution to it is audited.
        counted: microbatches that the plan counts for it; none: only its sum is checked.
        segment: of those that it owns, the one whose sum is made again; None: it owns none.
        me: our own id; our part of a sum is here.
        tensors: what is shown of a microbatch (``tensors_of``).
        said: what all members have committed to.
        here: those of its segments that were sent to us before the commit.
        terms: what audits go by.
    """

    def __init__(
        self,
        plan: Plan,
        member: PeerId,
        counted: Collection[int],
        segment: int | None,
        *,
        me: PeerId,
        tensors: Sequence[PayloadName],
        said: Mapping[PeerId, Commitment],
        here: Collection[int],
        terms: AuditTerms,
    ) -> None:
        self.plan, self.member, self.counted, self._segment = plan, member, counted, segment
        self._me, self._tensors, self._terms = me, tensors, terms
        self._said, self._here = said, here
        self._list = self._key("list", 0)
        self._found = ""
        """What the contribution came to, in words."""
        self._moves: deque[_Move] = deque()
        """The first one is with the worker, if we are busy."""
        self._asked = 0
        """How many of them were asked for."""
        self._waits: dict[PayloadKey, bytes] = {}
        """Payloads that were asked for and are not here, with their digests."""
        self._busy = False
        self._boundary = self._until = self._ask_at = 0.0

    def begin(self, now: float) -> list[AuditEffect]:
        """The worker has a copy of the version: ask for the list, if the member has contributed
        anything."""
        if not self.counted:
            return self._add_up(now)
        return self._ask({self._list: self._said[self.member].root}, now)

    # --- what comes ---------------------------------------------------------------------------

    def listed(self, encoded: bytes, now: float) -> list[AuditEffect]:
        """Take the list."""
        root = self._waits.pop(self._list, None)
        if root is None:
            return []
        if (shown := listed(encoded, root)) is None:
            return _refused("it shows another list than it has signed, or none")
        rows = shown.microbatches
        whole = all(len(row.digests) == len(self._tensors) for row in rows)
        if not whole or [row.microbatch for row in rows] != sorted(self.counted):
            return _refused("its list is not of what the plan counts for it")
        for row in rows:
            keys = tuple(self._key(name, row.microbatch) for name in self._tensors)
            task = PassTask(self.plan.step, row.microbatch, "audit", keys)
            self._moves.append(_Move(task, dict(zip(keys, row.digests, strict=True))))
        self._moves.append(self._comparison())
        return self._go_on(now)

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
            return _refused(f"its {key.name} {key.item} is not the one of its list")
        return self._go_on(now)

    def computed(self, task: AuditTask, outcome: Outcome, now: float) -> list[AuditEffect]:
        """Take what a task came to."""
        if not self._busy or task != self._moves[0].task:
            return []
        if outcome.error in ("codec", "shape", "poisoned"):
            return _refused(f"what it shows cannot be computed: {outcome.error}")
        if outcome.error:
            return [Judged(None, f"it could not be computed here: {outcome.error}")]
        self._busy = False
        self._moves.popleft()
        self._asked -= 1
        if isinstance(task, ReduceTask):
            return self._summed(outcome.apart[0], task.segment)
        if isinstance(task, CompareTask):
            return self._compared(*outcome.apart, now)
        self._boundary = max(self._boundary, *outcome.apart)
        return self._go_on(now)

    def tick(self, now: float) -> list[AuditEffect]:
        """Ask again, and lose patience in the end."""
        if not self._waits or now < min(self._until, self._ask_at):
            return []
        if now >= self._until:
            return _refused(f"nothing came for {PATIENCE_S:.0f} s")
        self._ask_at = now + ASK_AGAIN_S
        return [self._request(key) for key in self._waits]

    # --- within ---------------------------------------------------------------------------------

    def _key(self, name: PayloadName, item: int, peer: PeerId | None = None) -> PayloadKey:
        """Name a payload that the member shows: its own, or what a ``peer`` has sent it."""
        return PayloadKey(self.plan.step, name, item, self.plan.attempt, peer or self.member)

    def _ask(self, wanted: Mapping[PayloadKey, bytes], now: float) -> list[AuditEffect]:
        """Ask for payloads, whose bytes have to have these digests."""
        self._until, self._ask_at = now + PATIENCE_S, now + ASK_AGAIN_S
        self._waits |= wanted
        return [self._request(key) for key in wanted]

    def _request(self, key: PayloadKey) -> Send:
        at = self.plan.stage, self.plan.step, self.plan.attempt
        whose = None if key.peer == self.member else key.peer
        return Send(self.member, AuditRequest(*at, key.name, key.item, whose))  # type: ignore[arg-type]

    def _go_on(self, now: float) -> list[AuditEffect]:
        """Begin the next move if all of it is here, and ask for what the ones after it need."""
        ahead = [move.shown for move in islice(self._moves, self._asked, AHEAD + self._busy)]
        self._asked += len(ahead)
        asks = self._ask({key: digest for shown in ahead for key, digest in shown.items()}, now)
        if self._busy or not self._waits.keys().isdisjoint(self._moves[0].shown):
            return asks
        self._busy = True
        return [*asks, self._moves[0].task, *self._go_on(now)]

    def _comparison(self) -> _Move:
        """Compare the contribution; segments that were sent to us before need not be shown."""
        said = self._said[self.member].segments
        keys = tuple(self._key("segment", i) if digest else None for i, digest in enumerate(said))
        rest = {key: said[key.item] for key in keys if key and key.item not in self._here}
        return _Move(CompareTask(self.plan.step, tuple(self.plan.bounds), keys), rest)

    def _compared(self, deviation: float, along: float, now: float) -> list[AuditEffect]:
        terms = self._terms
        found = judge(self._boundary, deviation, along, coarse=terms.coarse, mixed=terms.mixed)
        numbers = f"contribution {deviation:.1e}, {along:+.1e} along; tensors {self._boundary:.1e}"
        self._found = f"{found.value}: {numbers}"
        if found is Grade.AGREES and self._segment is not None:
            return self._add_up(now)
        return [Judged(found, self._found)]

    def _add_up(self, now: float) -> list[AuditEffect]:
        """Make the member's sum again."""
        plan, i = self.plan, self._segment
        if i is None:
            return [Judged(None, "it has contributed nothing, and owns no sum")]
        parts = {self._key("segment", i, p): said.segments[i] for p, said in self._said.items()}
        task = ReduceTask(
            plan.step,
            plan.attempt,
            i,
            tuple(parts),
            tuple(count_of(member.counted) for member in plan.members),
            compare_to=self._key("reduced", i),
        )
        self._moves.append(_Move(task, {k: d for k, d in parts.items() if k.peer != self._me}))
        return self._go_on(now)

    def _summed(self, deviation: float, segment: int) -> list[AuditEffect]:
        found = grade(deviation)
        found = Grade.SUMS if found is Grade.LIES else found
        words = f"sum of segment {segment} {deviation:.1e} apart"
        return [Judged(found, f"{self._found or found.value}; {words}")]


def _refused(words: str) -> list[AuditEffect]:
    return [Judged(Grade.REFUSED, words)]
