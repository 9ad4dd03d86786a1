"""What a member commits to before it contributes, and shows to auditors, not without end.

Each payload costs the upload of megabytes. An honest auditor asks for each one once, and again when
nothing came for 3 s. So of one step each asker is shown at most 2 n + 8 payloads, for the n that it
may ask for. Where a third of all messages is lost an honest auditor does not notice this bound.

State: what we have contributed to the newest steps, how much each asker was shown of them, and the
steps that are kept for auditors after the neighbours need them no more.
"""

from typing import Final

from protocol.audit.commitment import tensors_of
from protocol.ids import PeerId
from protocol.pace import LOST_S
from protocol.pipeline.effects import DropStep, PayloadKey, SendPayload
from protocol.pipeline.place import Place
from protocol.rounds.commitments import Commitments
from protocol.rounds.effects import CommitTo, RoundEffect
from protocol.rounds.plans import active, owner
from protocol.seat.effects import SeatEffect
from protocol.token_bucket import Rate, TokenBuckets
from protocol.wire.messages import AuditReply, AuditRequest, Commitment, Plan

AGAIN: Final = 8
MAX_ATTEMPTS: Final = 64
"""Contributed to, that are remembered: more than are kept for auditors."""
MAX_ASKERS: Final = 256
"""Of all steps together; the one that was first is forgotten first."""
KEPT_STEPS: Final = 4
"""Steps that are kept so, at most; as many again that an auditor has asked for."""


class Showing:
    """See the module's docstring."""

    def __init__(self, place: Place, commitments: Commitments) -> None:
        self._place, self._commitments = place, commitments
        self.tensors = tensors_of(first=place.first, last=place.last)
        """What is shown of a microbatch."""
        self._contributed: dict[tuple[int, int], tuple[Plan, frozenset[int]]] = {}
        """By step and attempt: the plan, and what it counts for us."""
        self._shown = TokenBuckets[tuple[PeerId, int]](MAX_ASKERS)
        """What an asker may still be shown of a step."""
        self._kept: dict[int, float] = {}
        """Steps that nobody but auditors needs: until when."""
        self._asked = set[int]()
        """For which of them one has asked."""

    def contributed(self, plan: Plan, counted: frozenset[int]) -> list[RoundEffect]:
        """Our contribution is encoded: commit to it before anybody gets a part of it."""
        me, step, attempt = self._place.me, plan.step, plan.attempt
        if not self._commitments.are_made(plan):
            return []
        self._contributed[step, attempt] = plan, counted
        while len(self._contributed) > MAX_ATTEMPTS:
            del self._contributed[next(iter(self._contributed))]
        segments, others = set(active(plan)), (m.peer for m in plan.members if m.peer != me)
        return [
            CommitTo(
                tuple(map(PeerId, (*others, *plan.observers))),
                Commitment(plan.stage, step, attempt, era=self._place.era),
                {m: tuple(PayloadKey(step, name, m) for name in self.tensors) for m in counted},
                tuple(
                    PayloadKey(step, "segment", i, attempt, me) if i in segments else None
                    for i in range(len(plan.bounds) - 1)
                ),
            )
        ]

    # --- to auditors ------------------------------------------------------------------------------

    def on_request(self, sender: PeerId, message: AuditRequest, now: float) -> list[SeatEffect]:
        """Show an auditor what it asks for, if we have it."""
        of = message
        if of.step in self._kept:
            self._keep(of.step, now)
            if len(self._asked) < KEPT_STEPS:
                self._asked.add(of.step)
        if of.beside is not None:
            return self._shown_beside(sender, of.beside, of.step)
        if not self.shows(sender, of):
            return []
        key = PayloadKey(of.step, of.name, of.item)
        if of.name not in self.tensors:
            key = PayloadKey(of.step, of.name, of.item, of.attempt, of.of or self._place.me)
        reply = AuditReply(of.stage, of.step, of.attempt, of.name, of.item, of.of)
        return [SendPayload(sender, reply, (key,))]

    def _shown_beside(self, asker: PeerId, stage: int, step: int) -> list[SeatEffect]:
        """Show a replica of a ``stage`` beside ours the list of the last attempt that we have
        contributed to, and our commitment to it."""
        place = self._place
        attempt = max((a for s, a in self._contributed if s == step), default=None)
        said = None if attempt is None else self._commitments.of(place.me, step, attempt)
        if attempt is None or said is None or not self._takes(asker, step, 2 + AGAIN):
            return []
        reply = AuditReply(stage, step, attempt, "list", 0, said=said)
        return [SendPayload(asker, reply, (PayloadKey(step, "list", 0, attempt, place.me),))]

    def _takes(self, asker: PeerId, step: int, most: int) -> bool:
        """Whether an asker may be shown one more payload of a step; that is noted."""
        return self._shown.take({(asker, step): Rate(0.0, most)}, 0.0)

    def shows(self, asker: PeerId, asked: AuditRequest) -> bool:
        """Whether an asker is shown this now; that is noted."""
        plan, counted = self._contributed.get((asked.step, asked.attempt), (None, frozenset[int]()))
        if plan is None or not self._has(asked, plan, counted):
            return False
        if all(member.peer != asker for member in plan.members):
            return False
        segments = active(plan)
        owned = sum(owner(plan, i) == self._place.me for i in segments)
        tensors, parts = len(self.tensors) * len(counted), owned * len(plan.members)
        most = 2 * (1 + tensors + len(segments) + parts) + AGAIN
        return self._takes(asker, asked.step, most)

    def _has(self, asked: AuditRequest, plan: Plan, counted: frozenset[int]) -> bool:
        if asked.name == "segment":
            if asked.item not in active(plan):
                return False
            owned = owner(plan, asked.item) == self._place.me
            return asked.of is None or (owned and any(m.peer == asked.of for m in plan.members))
        if asked.of is not None:
            return False
        return asked.item == 0 if asked.name == "list" else asked.item in counted

    # --- how long -------------------------------------------------------------------------------

    def dropped(self, step: int, needed: int | None, now: float) -> list[SeatEffect]:
        """The neighbours need a step's payloads no more: auditors may, for a while.

        Args:
            step: the step.
            needed: a step that we audit ourselves.
            now: monotonic seconds.
        """
        self._keep(step, now)
        gone = self.tick(needed, now)
        spare = sorted(self._kept.keys() - self._asked - {needed}, key=lambda s: (self._kept[s], s))
        return [*gone, *self._drop(spare[: max(0, len(spare) - KEPT_STEPS)])]

    def tick(self, needed: int | None, now: float) -> list[SeatEffect]:
        """Free what was kept long enough; see ``dropped``."""
        if needed in self._kept:
            self._keep(needed, now)
        return self._drop([step for step, until in self._kept.items() if until <= now])

    def _keep(self, step: int, now: float) -> None:
        self._kept[step] = max(self._kept.get(step, now), now + LOST_S)

    def _drop(self, steps: list[int]) -> list[SeatEffect]:
        for step in steps:
            del self._kept[step]
        self._asked.difference_update(steps)
        if steps:
            gone = frozenset(steps)
            self._contributed = {of: x for of, x in self._contributed.items() if of[0] not in gone}
        return [DropStep(step) for step in steps]
