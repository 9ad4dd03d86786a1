"""A member of a round, its plans, and what it says to a test."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.effects import Penalise, Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.pipeline.effects import (
    Compute,
    DecodeTask,
    Keep,
    Outcome,
    PayloadKey,
    SendPayload,
    Task,
)
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.place import Place
from protocol.rounds.member import RoundMember
from protocol.wire.messages import Plan, Ready, Reduced, Segment
from protocol.wire.parts import PlanMember

ME, B, C, STRANGER = (peer_id_from_key(bytes([n]) * 32) for n in range(4))
STEP, PER_STEP, SIZE, STAGE = 2, 4, 512, 1
IDS = frozenset(range(8, 12))
LEADER = B


class Table:
    """A member with the ledger and the worker's state that a test gives it."""

    def __init__(self, *done: int, loaded: bool = True, promise: tuple[int, int] = (0, 0)) -> None:
        self.worker = Summed(set(done))
        self.member = RoundMember(
            Place(ME, STAGE, 2, PER_STEP),
            SIZE,
            STEP,
            accumulator=self.worker,
            loaded=loaded,
            promise=promise,
        )

    @property
    def done(self) -> set[int]:
        return self.worker.ids

    @done.setter
    def done(self, ids: set[int]) -> None:
        self.worker.ids = ids


@dataclass
class Summed:
    """The worker's sum, as set by a test."""

    ids: set[int]
    accumulating: bool = False

    def done(self) -> set[int]:
        return set(self.ids)

    def drop(self, microbatch: int) -> list[Send]:
        self.ids.discard(microbatch)
        return []

    def loss_sum(self, ids: frozenset[int]) -> float:
        return float(sum(ids))

    def close(self) -> None:
        pass


def bitmap(ids: object) -> bytes:
    return to_bitmap(ids, STEP, PER_STEP)


def plan(
    counted: dict[PeerId, set[int]],
    *,
    attempt: int = 1,
    bounds: list[int] | None = None,
    observers: list[PeerId] | None = None,
) -> Plan:
    members = [PlanMember(peer, bitmap(ids)) for peer, ids in counted.items()]
    cuts = [SIZE * i // len(members) // 128 * 128 for i in range(len(members))]
    return Plan(STAGE, STEP, attempt, members, bounds or [*cuts, SIZE], list[str](observers or []))


def tasks(effects: list[object]) -> list[Task]:
    return [effect.task for effect in effects if isinstance(effect, Compute)]


def blamed(effects: list[object]) -> list[tuple[PeerId, str]]:
    return [(e.peer, e.reason) for e in effects if isinstance(e, Penalise)]


def kept(effects: list[object]) -> list[PayloadKey]:
    return [key for effect in effects if isinstance(effect, Keep) for key in effect.keys]


def sent(effects: list[object], kind: type) -> list[tuple[PeerId, object]]:
    return [
        (effect.peer, effect.message)
        for effect in effects
        if isinstance(effect, Send | SendPayload) and isinstance(effect.message, kind)
    ]


def decoded(member: RoundMember, effects: list[object]) -> list[object]:
    """These effects, and those of having decoded the sums that they ask to be."""
    wanted = [task for task in tasks(effects) if isinstance(task, DecodeTask)]
    later = [effect for task in wanted for effect in member.computed(task, Outcome())]
    rest = [e for e in effects if not isinstance(e, Compute) or e.task not in wanted]
    return [*rest, *later]


def digest(n: int) -> bytes:
    return bytes([n]) * 32


def exchanging(attempt: int = 1) -> tuple[Table, Plan]:
    """Two members, ours the first shard; our contribution is encoded."""
    table = Table(8, 9)
    order = plan({ME: {8, 9}, B: {10, 11}}, attempt=attempt)
    [task] = tasks(table.member.plan(LEADER, order))
    effects = table.member.computed(task, Outcome())
    assert [to for to, _ in sent(effects, Segment)] == [B]
    return table, order


def ready(attempt: int = 1) -> tuple[Table, Plan, bytes]:
    """As ``exchanging``, with both shards reduced."""
    table, order = exchanging(attempt)
    [reduce] = tasks(table.member.segment(B, Segment(STAGE, STEP, attempt, 0)))
    table.member.computed(reduce, Outcome(sq_norm=2.0, digests=(digest(1),)))
    effects = table.member.reduced(B, Reduced(STAGE, STEP, attempt, 1, 3.0), digest(2))
    [(to, message)] = sent(decoded(table.member, list(effects)), Ready)
    assert to == LEADER
    assert message.loss_sum == 8 + 9
    return table, order, table.member.ready
