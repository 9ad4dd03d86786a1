"""A step may have 16,384 microbatches: no message costs more for it.

The tests count lines executed and bytes allocated per message in large and in small steps, which
are the same on every machine. Once a microbatch took 14 times as much, and a plan 60 times.
"""

import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from types import FrameType

import pytest

from protocol.effects import Send
from protocol.ids import PeerId, peer_id_from_key
from protocol.pipeline.effects import Compute, Outcome, SendPayload
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.place import Place
from protocol.seat.effects import SeatEffect
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Backward, Forward, Have, LedgerReport, Message, Plan, Receipt
from protocol.wire.parts import PlanMember
from tests.support.seats import seat_of

UP, ME, SIBLING, DOWN = (peer_id_from_key(bytes([n]) * 32) for n in range(4))
SMALL, LARGE = 256, 1024
MORE = 1.2
"""Times as much as in a small step: what is done once for each microbatch would take four times."""
ANSWERS = 4
"""Messages of the next stage at a time: receipts and gradients of two microbatches."""
LAST = 128
STEP_S = 12.8
"""Of small and large steps alike: so nobody is given up meanwhile."""


class Line:
    """A seat in the middle of three stages, or in the first, with neighbours that answer."""

    def __init__(self, per_step: int, stage: int) -> None:
        self.per_step, self.stage, self.now, self.messages = per_step, stage, 0.0, 0
        self.begun = 0
        self.answers: list[tuple[PeerId, Message]] = []
        place = Place(ME, stage, 3, per_step)
        self.seat = seat_of(place, 0, steps=9)
        before = [Replica(UP, 0, True, returned=True)]
        here, after = ([Replica(peer, 0, True)] for peer in (ME, DOWN))
        others = [Replica(SIBLING, 0, True)]
        stages = [here, others, after] if stage == 0 else [before, [*here, *others], after]
        self._do(self.seat.update_view(SwarmView.of(stages), 0.0))
        self._do(self.seat.tick(0.0))

    def one(self) -> None:
        """Let one more come by, and do what a node does after every message."""
        self.begun += 1
        self.now += STEP_S / self.per_step
        answers, self.answers = self.answers[:ANSWERS], self.answers[ANSWERS:]
        for sender, message in answers:
            self._hear(sender, message)
        if self.stage:
            self._hear(UP, Forward(self.stage, 0, self.begun - 1, False))
        self.seat.status(1.0)
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
                    said = Receipt(m.stage, 0, m.microbatch, "absent")
                    self.answers.append((peer, said))
                case SendPayload(peer, Forward() as m, _):
                    said = Receipt(m.stage, 0, m.microbatch, "known")
                    gradient = Backward(self.stage, 0, m.microbatch)
                    self.answers += [(peer, said), (peer, gradient)]


@dataclass
class Cost:
    """What some work takes, whatever the machine."""

    lines: int = 0
    """Executed, every turn of a loop or comprehension anew."""
    peak_bytes: int = 0
    """Allocated at once: what a copy made by one call takes, which is a line only."""


def cost(work: Callable[[], object]) -> Cost:
    found = Cost()

    def count(frame: FrameType, event: str, argument: object) -> Callable[..., object]:
        found.lines += 1
        return count

    before = sys.gettrace()
    tracemalloc.start()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
        found.peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return found


def filled(per_step: int, stage: int) -> Line:
    """A line that has most of its step."""
    line = Line(per_step, stage)
    while len(line.seat.pipeline.done()) < per_step - LAST:
        line.one()
    return line


def per_message(per_step: int, stage: int) -> tuple[float, float]:
    line = filled(per_step, stage)
    before = line.messages
    a_second = round(per_step / STEP_S)  # in which ledgers are reported as often
    found = [cost(line.one) for _ in range(a_second)]
    lines = sum(one.lines for one in found) / (line.messages - before)
    return lines, median(one.peak_bytes for one in found)


def per_plan(per_step: int) -> tuple[float, float]:
    """Per microbatch of a plan that counts half of them for a sibling: all those are taken out."""
    line = filled(per_step, 1)
    line.seat.quorum.designated = SIBLING
    mine = set(range(0, per_step, 2))
    halves = {ME: mine, SIBLING: set(range(per_step)) - mine}
    members = [PlanMember(peer, to_bitmap(ids, 0, per_step)) for peer, ids in halves.items()]
    plan = Plan(1, 0, 1, members, [0, 0, 64], [])
    found = cost(lambda: line.seat.receive(SIBLING, plan, line.now))
    assert found.lines > per_step, "it was followed"
    return found.lines / per_step, found.peak_bytes / per_step


def per_report(per_step: int) -> tuple[float, float]:
    """The cost of a sibling's ledger for the leader: it reads bits, not ids."""
    line = filled(per_step, 1)
    bits = [to_bitmap(ids, 0, per_step) for ids in (range(per_step // 2), range(3))]
    report = LedgerReport(1, 0, 1, *bits, 0)
    found = cost(lambda: line.seat.leader.report(SIBLING, report, line.now))
    return found.lines, found.peak_bytes


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
def test_a_message_costs_no_more_in_a_large_step(
    measure: Callable[[int], tuple[float, float]],
) -> None:
    (lines, most_bytes), (lines_large, most_bytes_large) = measure(SMALL), measure(LARGE)
    assert lines_large < MORE * lines
    assert most_bytes_large < MORE * most_bytes
