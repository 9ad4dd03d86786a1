"""Passes whose numbers run away: a neighbour's tensor is at fault, or training has diverged."""

from collections.abc import Sequence

import pytest

from protocol.effects import Penalise
from protocol.ids import PeerId
from protocol.pipeline.divergence import FROM_ONE, SPOILT_POINTS
from protocol.pipeline.effects import (
    BackwardTask,
    Compute,
    Fault,
    ForwardTask,
    Outcome,
    SendPayload,
)
from protocol.pipeline.pipeline import Pipeline
from protocol.pipeline.place import Place
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Backward, Forward, Have, Receipt
from tests.support.effects import sent
from tests.support.protocol_examples import peer

ME, A, B, C, D = (peer(number) for number in range(1, 6))
PER_STEP, STEP, FIRST = 8, 3, 24
BAN_POINTS = 100
"""At which a node cuts a link (client/net/penalties.py)."""


class Line:
    """A replica of one of three stages; `before` and `after` are those of the stages beside."""

    def __init__(
        self, before: Sequence[PeerId] = (A, B), after: Sequence[PeerId] = (C, D), stage: int = 1
    ) -> None:
        self.stage = stage
        self.made = Pipeline(Place(ME, stage, 3, PER_STEP), STEP)
        self.penalties: list[tuple[PeerId, int]] = []
        self.stages = [[Replica(peer(9), STEP, True)] for _ in range(3)]
        self.stages[stage] = [Replica(ME, STEP, True)]
        if stage:
            self.stages[stage - 1] = [Replica(each, STEP, True) for each in before]
        self.stages[stage + 1] = [Replica(each, STEP, True) for each in after]
        self.made.update_view(SwarmView.of(self.stages), 0.0)

    def offer(self, sender: PeerId, microbatch: int) -> list[object]:
        """A boundary comes; what follows once its pass has failed."""
        message = Forward(self.stage, STEP, microbatch, 1, again=False)
        return self.fail(self.made.forward(sender, message, b"", 0.0))

    def fail(self, effects: Sequence[object]) -> list[object]:
        """The worker's only task has failed; return what follows, without further tasks."""
        [task] = [effect.task for effect in effects if isinstance(effect, Compute)]
        followed = self.made.computed(task, Outcome(error="poisoned"), 0.0)
        self.penalties += [(e.peer, e.points) for e in followed if isinstance(e, Penalise)]
        return followed

    def sent(self, microbatch: int) -> PeerId:
        """A boundary comes, is run and sent on; return to whom."""
        message = Forward(self.stage, STEP, microbatch, 1, again=False)
        if self.stage:
            effects = self.made.forward(A, message, b"there", 0.0)
        else:
            effects = self.made.lease([microbatch], again=False, now=0.0)
        assert any(isinstance(effect, Compute) for effect in effects)
        effects = self.made.computed(ForwardTask(STEP, microbatch), Outcome(), 0.0)
        [to] = [effect.peer for effect in effects if isinstance(effect, SendPayload)]
        self.made.deliveries.receipt(to, self.receipt(microbatch, "accepted", 1), 0.0)
        return to

    def receipt(self, microbatch: int, verdict: str, attempt: int) -> Receipt:
        return Receipt(self.stage + 1, STEP, microbatch, attempt, verdict)

    def gradient(self, sender: PeerId, microbatch: int) -> list[object]:
        """A gradient comes; what follows once its pass has failed."""
        message = Backward(self.stage, STEP, microbatch)
        return self.fail(self.made.backward(sender, message, b"", 0.0))

    def finished(self, microbatch: int) -> None:
        """Another microbatch goes all the way."""
        sender = self.sent(microbatch)
        self.made.backward(sender, Backward(self.stage, STEP, microbatch), b"back", 0.0)
        assert microbatch not in self.made.given().get((self.stage + 1, sender), {})
        self.made.computed(BackwardTask(STEP, microbatch), Outcome(), 0.0)
        assert microbatch in self.made.done()
        given = self.made.given()
        assert given[self.stage + 1, sender][microbatch] == b"back"
        assert self.stage == 0 or given[self.stage - 1, A][microbatch] == b"there"


def diverged(effects: Sequence[object]) -> bool:
    faults = [effect for effect in effects if isinstance(effect, Fault)]
    assert all(fault.kind in ("poisoned", "diverged") for fault in faults)
    return bool(faults)


def verdicts(effects: Sequence[object]) -> list[tuple[PeerId, str]]:
    return [(peer, receipt.verdict) for peer, receipt in sent(effects, Receipt)]


def asked(effects: Sequence[object]) -> list[tuple[PeerId, int]]:
    return [(peer, question.attempt) for peer, question in sent(effects, Have)]


def test_a_boundary_that_spoils_a_pass_is_blamed_and_may_be_sent_to_others() -> None:
    line = Line()
    effects = line.offer(A, FIRST)
    assert not diverged(effects)
    assert verdicts(effects) == [(A, "busy")]
    assert line.penalties == [(A, SPOILT_POINTS)]
    assert not line.made.in_flight()


def test_a_gradient_that_spoils_a_pass_is_blamed_and_got_again() -> None:
    line = Line()
    bringer = line.sent(FIRST)
    effects = line.gradient(bringer, FIRST)
    assert not diverged(effects)
    assert line.penalties == [(bringer, SPOILT_POINTS)]
    questions = asked(effects)
    assert {who for who, _ in questions} == {C, D}
    other = D if bringer == C else C
    line.made.deliveries.receipt(other, line.receipt(FIRST, "known", questions[0][1]), 0.0)
    line.made.backward(other, Backward(1, STEP, FIRST), b"", 0.0)
    line.made.computed(BackwardTask(STEP, FIRST), Outcome(), 0.0)
    assert line.made.done() == {FIRST}


def test_a_single_microbatch_that_fails_from_everywhere_is_enough() -> None:
    """It may be the only one left of the step: nothing else would ever end it."""
    line = Line()
    assert [diverged(line.offer(who, FIRST)) for who in (A, A, B)] == [False, False, True]


@pytest.mark.parametrize("microbatches", [1, FROM_ONE])
def test_the_only_neighbour_is_enough_before_it_is_banned(microbatches: int) -> None:
    line = Line(before=(A,))
    ids = [FIRST + n % microbatches for n in range(FROM_ONE)]
    found = [diverged(line.offer(A, each)) for each in ids]
    assert found == [False] * (FROM_ONE - 1) + [True]
    assert sum(points for _, points in line.penalties) < BAN_POINTS


@pytest.mark.parametrize("closed", [False, True])
def test_only_who_counts_it_has_a_gradient_of_a_closed_step(closed: bool) -> None:
    line = Line() if closed else Line(after=(C,))
    bringer = line.sent(FIRST)
    if closed:
        line.stages[2] = [Replica(each, STEP + 1, True) for each in (C, D)]
        line.made.update_view(SwarmView.of(line.stages), 0.0)
    found = []
    for _ in range(FROM_ONE):
        effects = line.gradient(bringer, FIRST)
        found.append(diverged(effects))
        for _, attempt in asked(effects)[:1]:
            line.made.deliveries.receipt(bringer, line.receipt(FIRST, "known", attempt), 0.0)
    assert found == [False] * (FROM_ONE - 1) + [True]


def test_one_of_several_neighbours_cannot_end_a_node() -> None:
    """It is banned before long; the others' tensors still work."""
    line = Line()
    for n in range(2 * BAN_POINTS // SPOILT_POINTS):
        assert not diverged(line.offer(A, FIRST + n % 3))
    assert {who for who, _ in line.penalties} == {A}
    assert sum(points for _, points in line.penalties) >= BAN_POINTS


def test_a_finished_microbatch_shows_that_the_parameters_are_sound() -> None:
    line = Line()
    for n in range(4):
        assert not diverged(line.offer(A, FIRST + n))
        line.finished(FIRST + 4 + n)
        assert not diverged(line.offer(B, FIRST + n))


def test_our_own_samples_are_nobodys_fault() -> None:
    line = Line(stage=0)
    [fault] = line.fail(line.made.lease([FIRST], again=False, now=0.0))
    assert fault.kind == "diverged"
    assert not line.penalties
