"""Passes whose numbers run away: a neighbour's tensor is at fault, or training has diverged."""

from collections.abc import Sequence
from typing import Any

import pytest

from protocol.effects import Penalise
from protocol.ids import PeerId
from protocol.pipeline.divergence import FROM_ONE, SPOILT_POINTS
from protocol.pipeline.effects import BackwardTask, Fault, ForwardTask, Outcome, SendPayload
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Have, Receipt
from tests.support import pipelines
from tests.support.effects import sent, tasks
from tests.support.pipelines import PER_STEP, STEP, A, B, C, D

FIRST = STEP * PER_STEP
BAN_POINTS = 100
"""At which a node cuts a link (client/net/penalties.py)."""


class Line(pipelines.Line):
    """A replica whose worker fails."""

    def __init__(self, **beside: Any) -> None:
        super().__init__(**beside)
        self.penalties: list[tuple[PeerId, int]] = []

    def fail(
        self, effects: Sequence[object], error: str = "poisoned", part: int = 0
    ) -> list[object]:
        """The worker's only task has failed; return what follows, without further tasks."""
        [task] = tasks(effects)
        followed = list(self.made.computed(task, Outcome(error=error, part=part), 0.0))
        self.penalties += [(e.peer, e.points) for e in followed if isinstance(e, Penalise)]
        return followed

    def offer(self, sender: PeerId, microbatch: int) -> list[object]:
        """A boundary comes; what follows once its pass has failed."""
        return self.fail(self.forward(microbatch, sender))

    def sent(self, microbatch: int) -> PeerId:
        """A boundary comes, is run and sent on; return to whom."""
        assert tasks(self.forward(microbatch, A, b"there"))
        effects = self.made.computed(ForwardTask(STEP, microbatch), Outcome(), 0.0)
        [to] = [effect.peer for effect in effects if isinstance(effect, SendPayload)]
        self.receipt(to, microbatch, "known")
        return to

    def gradient(self, sender: PeerId, microbatch: int, *failed: Any) -> list[object]:
        """A gradient comes; what follows once its pass has failed."""
        return self.fail(self.backward(microbatch, sender), *failed)

    def finished(self, microbatch: int) -> None:
        """Another microbatch goes all the way."""
        sender = self.sent(microbatch)
        self.backward(microbatch, sender, b"back")
        assert microbatch not in self.made.given().get((self.stage + 1, sender), {})
        self.made.computed(BackwardTask(STEP, microbatch), Outcome(), 0.0)
        assert microbatch in self.made.done()
        given = self.made.given()
        assert given[self.stage + 1, sender][microbatch] == b"back"
        assert given[self.stage - 1, A][microbatch] == b"there"


def diverged(effects: Sequence[object]) -> bool:
    faults = [effect for effect in effects if isinstance(effect, Fault)]
    assert all(fault.kind in ("poisoned", "diverged") for fault in faults)
    return bool(faults)


def verdicts(effects: Sequence[object]) -> list[tuple[PeerId, str]]:
    return [(peer, receipt.verdict) for peer, receipt in sent(effects, Receipt)]


def asked(effects: Sequence[object]) -> list[PeerId]:
    return [peer for peer, _ in sent(effects, Have)]


def test_a_boundary_that_spoils_a_pass_is_blamed_and_may_be_sent_to_others() -> None:
    line = Line()
    effects = line.offer(A, FIRST)
    assert not diverged(effects)
    assert verdicts(effects) == [(A, "declined")]
    assert line.penalties == [(A, SPOILT_POINTS)]
    assert not line.made.in_flight()


@pytest.mark.parametrize(("error", "points"), [("poisoned", SPOILT_POINTS), ("codec", 20)])
def test_a_gradient_that_spoils_a_pass_is_blamed_and_got_again(error: str, points: int) -> None:
    line = Line()
    bringer = line.sent(FIRST)
    other = D if bringer == C else C
    effects = line.gradient(bringer, FIRST, error)
    assert not diverged(effects)
    assert line.penalties == [(bringer, points)]
    questions = asked(effects)
    assert set(questions) == ({C, D} if error == "poisoned" else {other})
    line.receipt(other, FIRST, "known")
    line.backward(FIRST, other)
    line.made.computed(BackwardTask(STEP, FIRST), Outcome(), 0.0)
    assert line.made.done() == {FIRST}


def test_the_same_bytes_again_and_again_cost_their_giver_the_link() -> None:
    """An honest one gives it again after a second, and each time after twice as long."""
    line = Line(after=(C,))
    line.sent(FIRST)
    for _ in range(5):
        assert asked(line.gradient(C, FIRST, "codec")) == [C]
        line.receipt(C, FIRST, "known")
    assert sum(points for _, points in line.penalties) == BAN_POINTS


def test_our_own_input_gone_bad_is_nobodys_fault() -> None:
    line = Line()
    [fault] = line.gradient(line.sent(FIRST), FIRST, "codec", 1)
    assert (fault.kind, line.penalties) == ("internal", [])


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
        if asked(effects):
            line.receipt(bringer, FIRST, "known")
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
