"""Payloads that the other members have sent for a step's round: contributions to our segments, and
broadcasts.

Both may overtake the plan that says who owns which segment, so they are kept by attempt and sender,
a bounded number of each, and judged once the plan is here. The bytes themselves are kept elsewhere
under the keys named here.
"""

import math
from collections.abc import Sequence
from typing import Final, Literal

from protocol.ids import PeerId
from protocol.pipeline.effects import ApplyTask, DecodeTask, PayloadKey, ReduceTask
from protocol.pipeline.ledger import count_of
from protocol.rounds.commitments import Came
from protocol.rounds.obstruction import Wait
from protocol.rounds.plans import Broadcast, active, owner
from protocol.rounds.stretch import stretch
from protocol.wire.messages import Plan, Reduced, Segment

EARLY_ATTEMPTS = 4
"""Attempts of which one sender's contributions (and broadcasts) are kept at a time. It is ahead of
the plan we follow by the width of a lane, so few are ever needed."""


class TooMany(Exception):
    """A sender has more kept here than it can need."""


Entry = tuple[Literal["segment", "reduced"], int, int, PeerId]
"""Contribution or sum, attempt, segment, sender."""
OWN: Final = Broadcast(b"", 0.0)
"""Of our own contribution nothing is announced."""


class Inbox:
    """One step's; see the module's docstring.

    Args:
        segments: those that one member owns at most.
    """

    def __init__(self, segments: int) -> None:
        self._most = EARLY_ATTEMPTS * segments
        self._kept: dict[Entry, Broadcast] = {}
        self._came: list[Entry] = []  # broadcasts that were not looked at since they came
        self._to_reduce: list[int] = []
        self._unsound: set[int] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def senders(self, attempt: int) -> set[PeerId]:
        """Return the senders of an attempt's payloads."""
        return {sender for _, of, _, sender in self._kept if of == attempt}

    def follow(self, plan: Plan, me: PeerId) -> set[PeerId]:
        """Begin an attempt: forget older ones and what impostors sent; return the impostors."""
        segments = active(plan)
        self._to_reduce = [i for i in segments if owner(plan, i) == me]
        self._unsound = set(segments)
        false = {
            (kind, attempt, segment, sender)
            for kind, attempt, segment, sender in self._kept
            if (kind, attempt) == ("reduced", plan.attempt) and owner(plan, segment) != sender
        }
        for entry in [e for e in self._kept if e in false or e[1] < plan.attempt]:
            del self._kept[entry]
        self._came = [entry for entry in self._kept if entry[0] == "reduced"]
        return {entry[3] for entry in false}

    def take(
        self, sender: PeerId, message: Segment | Reduced, digest: bytes = b""
    ) -> PayloadKey | None:
        """Take a contribution or a sum; the first one of an attempt stands. Return the key of its
        bytes, None if it is here already.

        Raises:
            TooMany: this sender has sent too much that we do not need yet.
        """
        kind: Literal["segment", "reduced"] = "segment"
        said = Broadcast(digest, 0.0)
        if isinstance(message, Reduced):
            kind, said = "reduced", Broadcast(digest, message.sq_norm, message.own_sq_norm)
        entry = kind, message.attempt, message.segment, sender
        if entry in self._kept:
            return None
        if sum(of[0] == kind and of[3] == sender for of in self._kept) >= self._most:
            raise TooMany
        self._kept[entry] = said
        if kind == "reduced":
            self._came.append(entry)
        return PayloadKey(message.step, kind, message.segment, message.attempt, sender)

    def own(self, plan: Plan, segment: int, me: PeerId) -> None:
        """Our own contribution to a segment of a plan is encoded."""
        self._kept["segment", plan.attempt, segment, me] = OWN

    def came(self, plan: Plan) -> Came:
        """Return what others have contributed to an attempt."""
        found = dict[PeerId, dict[int, bytes]]()
        for (kind, attempt, segment, sender), said in self._kept.items():
            if (kind, attempt) == ("segment", plan.attempt) and said != OWN:
                found.setdefault(sender, {})[segment] = said.digest
        return found

    def reductions(self, plan: Plan) -> list[ReduceTask]:
        """Return the sums of our segments that can be made now and were not begun."""
        contributors = [member.peer for member in plan.members]
        counts = _counts(plan)
        step, attempt, tasks, waiting = plan.step, plan.attempt, list[ReduceTask](), list[int]()
        for i in self._to_reduce:
            if all(("segment", attempt, i, peer) in self._kept for peer in contributors):
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
            member.peer
            for member in plan.members
            for i in self._to_reduce
            if ("segment", attempt, i, member.peer) not in self._kept
        }
        if late - {me}:
            return [("contribution", peer) for peer in sorted(late - {me})]
        sums = (_entry(plan, i) for i in active(plan))
        owners = {entry[3] for entry in sums if entry not in self._kept}
        return [("sum", peer) for peer in sorted(owners - {me})]

    def decodings(self, plan: Plan, me: PeerId) -> list[DecodeTask]:
        """Return the broadcasts of others that can be decoded now and were not begun."""
        came, self._came = self._came, []
        tasks = []
        for entry in came:
            _, attempt, segment, sender = entry
            if attempt == plan.attempt and segment in self._unsound and sender != me:
                key = PayloadKey(plan.step, "reduced", segment, attempt, sender)
                norm = self._kept[entry].sq_norm
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
        found = [self._kept[entry] for entry in entries if entry in self._kept]
        return found if len(found) == len(entries) else None

    def apply_task(self, plan: Plan, rate: float | None = None) -> ApplyTask:
        """Return the task that applies all broadcasts; ``rate`` is the learning rate, if it is not
        the manifest's."""
        keys: list[PayloadKey | None] = [None] * (len(plan.bounds) - 1)
        norms, own_sq_norm = [0.0] * len(keys), 0.0
        for segment in active(plan):
            entry = _entry(plan, segment)
            keys[segment] = PayloadKey(plan.step, "reduced", segment, plan.attempt, entry[3])
            norms[segment] = self._kept[entry].sq_norm
            own_sq_norm += self._kept[entry].own_sq_norm
        sums = tuple(keys), tuple(norms)
        further = stretch(_counts(plan), math.fsum(norms), own_sq_norm)
        return ApplyTask(plan.step, plan.attempt, tuple(plan.bounds), *sums, rate, further)


def _counts(plan: Plan) -> tuple[int, ...]:
    return tuple(count_of(member.counted) for member in plan.members)


def _entry(plan: Plan, segment: int) -> Entry:
    return "reduced", plan.attempt, segment, owner(plan, segment) or PeerId("")
