"""Payloads that the other members have sent for a step's round: contributions to our segments, and
broadcasts.

Both may overtake the plan that says who owns which segment, so they are kept by attempt and sender,
a bounded number of each, and judged once the plan is here. The bytes themselves are kept elsewhere
under the keys named here.
"""

import math
from collections.abc import Sequence

from protocol.ids import PeerId
from protocol.pipeline.effects import ApplyTask, DecodeTask, PayloadKey, ReduceTask
from protocol.pipeline.ledger import count_of
from protocol.rounds.obstruction import Wait
from protocol.rounds.plans import Broadcast, active, owner, reduced_key
from protocol.rounds.stretch import stretch
from protocol.wire.messages import Plan, Reduced, Segment

EARLY_ATTEMPTS = 4
"""Attempts of which one sender's contributions (and broadcasts) are kept at a time. It is ahead of
the plan we follow by the width of a lane, so few are ever needed."""


class TooMany(Exception):
    """A sender has more kept here than it can need."""


Entry = tuple[int, int, PeerId]
"""Attempt, segment, sender."""


class Inbox:
    """One step's; see the module's docstring.

    Args:
        segments: those that one member owns at most.
    """

    def __init__(self, segments: int) -> None:
        self._most = EARLY_ATTEMPTS * segments
        self._parts: set[Entry] = set()
        self._broadcasts: dict[Entry, Broadcast] = {}
        self._came: list[Entry] = []  # broadcasts that were not looked at since they came
        self._to_reduce: list[int] = []
        self._unsound: set[int] = set()

    def __len__(self) -> int:
        return len(self._parts) + len(self._broadcasts)

    def senders(self, attempt: int) -> set[PeerId]:
        """Return the senders of an attempt's payloads."""
        entries = (*self._parts, *self._broadcasts)
        return {sender for of, _, sender in entries if of == attempt}

    def forget(self, peer: PeerId, attempt: int) -> None:
        """Forget what a peer sent for other attempts than this one."""
        self._parts = {p for p in self._parts if p[2] != peer or p[0] == attempt}
        for entry in [e for e in self._broadcasts if e[2] == peer and e[0] != attempt]:
            del self._broadcasts[entry]
        self._came = [entry for entry in self._came if entry in self._broadcasts]

    def follow(self, plan: Plan, me: PeerId) -> set[PeerId]:
        """Begin an attempt: forget older ones and what impostors sent; return the impostors."""
        segments = active(plan)
        self._to_reduce = [i for i in segments if owner(plan, i) == me]
        self._unsound = set(segments)
        self._parts = {part for part in self._parts if part[0] >= plan.attempt}
        impostors: set[PeerId] = set()
        for attempt, segment, sender in list(self._broadcasts):
            impostor = attempt == plan.attempt and owner(plan, segment) != sender
            if attempt < plan.attempt or impostor:
                del self._broadcasts[attempt, segment, sender]
            if impostor:
                impostors.add(sender)
        self._came = list(self._broadcasts)
        return impostors

    def contribution(self, sender: PeerId, message: Segment) -> PayloadKey | None:
        """Take a member's contribution; return the key of its bytes, None if it is here already.

        Raises:
            TooMany: this sender has sent too much that we do not need yet.
        """
        entry = (message.attempt, message.segment, sender)
        if entry in self._parts:
            return None
        if sum(part[2] == sender for part in self._parts) >= self._most:
            raise TooMany
        self._parts.add(entry)
        return PayloadKey(message.step, "segment", message.segment, message.attempt, sender)

    def own(self, plan: Plan, segment: int, me: PeerId) -> None:
        """Our own contribution to a segment of a plan is encoded."""
        self._parts.add((plan.attempt, segment, me))

    def broadcast(self, sender: PeerId, message: Reduced, digest: bytes) -> PayloadKey | None:
        """Take a broadcast; the first one of an attempt stands. Return the key of its bytes,
        None if it is here already.

        Raises:
            TooMany: this sender has sent too much that we do not need yet.
        """
        entry = (message.attempt, message.segment, sender)
        if entry in self._broadcasts:
            return None
        if sum(known == sender for _, _, known in self._broadcasts) >= self._most:
            raise TooMany
        self._broadcasts[entry] = Broadcast(digest, message.sq_norm, message.own_sq_norm)
        self._came.append(entry)
        return reduced_key(sender, message)

    def reductions(self, plan: Plan) -> list[ReduceTask]:
        """Return the sums of our segments that can be made now and were not begun."""
        contributors = [PeerId(member.peer) for member in plan.members]
        counts = _counts(plan)
        step, attempt, tasks, waiting = plan.step, plan.attempt, list[ReduceTask](), list[int]()
        for i in self._to_reduce:
            if all((attempt, i, peer) in self._parts for peer in contributors):
                keys = [PayloadKey(step, "segment", i, attempt, peer) for peer in contributors]
                tasks.append(ReduceTask(step, attempt, i, tuple(keys), counts))
            else:
                waiting.append(i)
        self._to_reduce = waiting
        return tasks

    def awaited(self, plan: Plan, me: PeerId) -> list[Wait]:
        """Return whose contributions are not here or, if all are, whose sums are not."""
        attempt = plan.attempt
        late = {
            PeerId(member.peer)
            for member in plan.members
            for i in self._to_reduce
            if (attempt, i, member.peer) not in self._parts
        }
        if late - {me}:
            return [("contribution", peer) for peer in sorted(late - {me})]
        sums = (_entry(plan, i) for i in active(plan))
        owners = {entry[2] for entry in sums if entry not in self._broadcasts}
        return [("sum", peer) for peer in sorted(owners - {me})]

    def decodings(self, plan: Plan, me: PeerId) -> list[DecodeTask]:
        """Return the broadcasts of others that can be decoded now and were not begun."""
        came, self._came = self._came, []
        tasks = []
        for entry in came:
            attempt, segment, sender = entry
            if attempt == plan.attempt and segment in self._unsound and sender != me:
                key = PayloadKey(plan.step, "reduced", segment, attempt, sender)
                norm = self._broadcasts[entry].sq_norm
                tasks.append(DecodeTask(plan.step, attempt, segment, key, norm))
        return tasks

    def sound(self, segment: int) -> None:
        """The sum of a segment is decoded: it is what its owner says."""
        self._unsound.discard(segment)

    def all_sound(self) -> bool:
        """Whether every sum of the attempt is here and decoded."""
        return not self._unsound

    def broadcasts(self, plan: Plan) -> Sequence[Broadcast] | None:
        """Return the owners' broadcasts of all segments in order, None while one is missing."""
        entries = [_entry(plan, segment) for segment in active(plan)]
        found = [self._broadcasts[entry] for entry in entries if entry in self._broadcasts]
        return found if len(found) == len(entries) else None

    def apply_task(self, plan: Plan, rate: float | None = None) -> ApplyTask:
        """Return the task that applies all broadcasts; ``rate`` is the learning rate, if it is not
        the manifest's."""
        keys: list[PayloadKey | None] = [None] * (len(plan.bounds) - 1)
        norms, own_sq_norm = [0.0] * len(keys), 0.0
        for segment in active(plan):
            entry = _entry(plan, segment)
            keys[segment] = PayloadKey(plan.step, "reduced", segment, plan.attempt, entry[2])
            norms[segment] = self._broadcasts[entry].sq_norm
            own_sq_norm += self._broadcasts[entry].own_sq_norm
        sums = tuple(keys), tuple(norms)
        further = stretch(_counts(plan), math.fsum(norms), own_sq_norm)
        return ApplyTask(plan.step, plan.attempt, tuple(plan.bounds), *sums, rate, further)


def _counts(plan: Plan) -> tuple[int, ...]:
    return tuple(count_of(member.counted) for member in plan.members)


def _entry(plan: Plan, segment: int) -> Entry:
    return plan.attempt, segment, owner(plan, segment) or PeerId("")
