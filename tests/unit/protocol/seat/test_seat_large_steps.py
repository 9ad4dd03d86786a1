"""A step of 16,384 microbatches, the most that a manifest may have: no message costs more for it.

The tests compare processor time per message in large and in small steps, generously. It was 14
times as much for a microbatch (5 ms) and 60 times for a plan (0.8 s).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from copy import deepcopy
from functools import cache

import pytest

from protocol.effects import Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.limits import MAX_MICROBATCHES_PER_STEP
from protocol.pipeline.effects import Compute, Outcome, SendPayload
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.place import Place
from protocol.seat.effects import SeatEffect
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Backward, Forward, Have, LedgerReport, Message, Plan, Receipt
from protocol.wire.parts import PlanMember

UP, ME, SIBLING, DOWN = (peer_id_from_key(bytes([n]) * 32) for n in range(4))
SMALL = 256
GENEROUS = 5.0
ANSWERS = 4
"""Messages of the next stage at a time: receipts and gradients of two microbatches."""
LAST = 128


class Line:
    """A seat in the middle of three stages, or in the first, with neighbours that answer."""

    def __init__(self, per_step: int, stage: int) -> None:
        self.per_step, self.stage, self.now, self.messages = per_step, stage, 0.0, 0
        self.begun = 0
        self.answers: list[tuple[PeerId, Message]] = []
        place = Place(ME, stage, 3, per_step)
        self.seat = Seat(place, size=64, steps=9, tokens_per_step=1, step=0, serving=True)
        before, here, after = ([Replica(peer, 0, True)] for peer in (UP, ME, DOWN))
        others = [Replica(SIBLING, 0, True)]
        stages = [here, others, after] if stage == 0 else [before, [*here, *others], after]
        self._do(self.seat.update_view(SwarmView.of(stages), 0.0))
        self._do(self.seat.allow_training(0.0))

    def one(self) -> None:
        """Let one more come by, and do what a node does after every message."""
        self.begun += 1
        self.now += 0.05
        answers, self.answers = self.answers[:ANSWERS], self.answers[ANSWERS:]
        for sender, message in answers:
            self._hear(sender, message)
        if self.stage:
            self._hear(UP, Forward(self.stage, 0, self.begun - 1, 1, 8, False))
        self.seat.status(1.0)
        self.seat.next_deadline()
        self._do(self.seat.tick(self.now))

    def _hear(self, sender: PeerId, message: Message) -> None:
        self.messages += 1
        self._do(self.seat.receive(sender, message, self.now))

    def _do(self, effects: list[SeatEffect]) -> None:
        waiting = list(effects)
        while waiting:
            match waiting.pop():
                case Compute(task):
                    waiting += self.seat.computed(task, Outcome(loss_sum=1.0), self.now)
                case Send(peer, Have() as m):
                    said = Receipt(m.stage, 0, m.microbatch, m.attempt, "absent", 0)
                    self.answers.append((peer, said))
                case SendPayload(peer, Forward() as m, _):
                    said = Receipt(m.stage, 0, m.microbatch, m.attempt, "accepted", 0)
                    gradient = Backward(self.stage, 0, m.microbatch, m.attempt)
                    self.answers += [(peer, said), (peer, gradient)]


def seconds(work: Callable[[], object]) -> float:
    """Processor time of some work, without the garbage collector's walk through all of pytest."""
    gc.collect()
    gc.disable()
    try:
        begun = time.process_time()
        work()
        return time.process_time() - begun
    finally:
        gc.enable()


def fewest(measure: Callable[[], float]) -> float:
    """The least of five: other work of the machine only adds time."""
    return min(measure() for _ in range(5))


@cache
def _filled(per_step: int, stage: int) -> Line:
    line = Line(per_step, stage)
    while len(line.seat.pipeline.done()) < per_step - LAST:
        line.one()
    return line


def filled(per_step: int, stage: int) -> Line:
    """A line that has most of its step, for one measurement: filling it takes seconds."""
    return deepcopy(_filled(per_step, stage))


def per_message(per_step: int, stage: int) -> float:
    line = filled(per_step, stage)
    before = line.messages
    taken = seconds(lambda: [line.one() for _ in range(LAST // 4)])
    return taken / max(1, line.messages - before)


def per_plan(per_step: int) -> float:
    """Per microbatch of a plan that counts half of them for a sibling: all those are taken out."""
    line = filled(per_step, 1)
    mine = set(range(0, per_step, 2))
    halves = {ME: mine, SIBLING: set(range(per_step)) - mine}
    members = [PlanMember(peer, to_bitmap(ids, 0, per_step)) for peer, ids in halves.items()]
    plan = Plan(1, 0, 1, members, [0, 0, 64], [])
    return seconds(lambda: line.seat.receive(SIBLING, plan, line.now)) / per_step


def per_report(per_step: int) -> float:
    """The cost of a sibling's ledger for the leader: it reads bits, not ids."""
    line = filled(per_step, 1)
    bits = [to_bitmap(ids, 0, per_step) for ids in (range(per_step // 2), range(3))]

    def hear() -> None:
        for seq in range(64):
            line.seat.leader.report(SIBLING, LedgerReport(1, 0, seq + 1, *bits, 0), line.now)

    return seconds(hear) / 64


@pytest.mark.parametrize(
    "measure",
    [
        lambda per_step: per_message(per_step, 0),
        lambda per_step: per_message(per_step, 1),
        per_plan,
        per_report,
    ],
    ids=["first stage", "inner stage", "plan", "report"],
)
def test_a_message_costs_no_more_in_a_large_step(measure: Callable[[int], float]) -> None:
    small = fewest(lambda: measure(SMALL))
    large = fewest(lambda: measure(MAX_MICROBATCHES_PER_STEP))
    assert large < GENEROUS * small, f"{1e6 * small:.0f} us in small steps, {1e6 * large:.0f} us"
