"""Malformed tensors: only its sender is blamed, and another replica replaces it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from protocol.effects import Penalise, Send
from protocol.ids import PeerId
from protocol.pace import ANSWER_S
from protocol.pipeline.effects import BackwardTask, Compute, Fault, ForwardTask, Outcome
from protocol.pipeline.pipeline import Pipeline
from protocol.pipeline.place import Place
from protocol.pipeline.timing import UNMEASURED_S
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Backward, Forward, Have, Receipt
from tests.support.pipeline_deliveries import (
    STEP,
    STRANGER,
    A,
    B,
    C,
    M,
    deliveries,
    held,
    held_by,
    offers,
    questions,
    rated,
    receipt,
)


def blamed(effects: Iterable[object]) -> list[tuple[PeerId, int]]:
    return [(e.peer, e.points) for e in effects if isinstance(e, Penalise)]


class TestGettingAnotherGradient:
    def test_a_malformed_gradient_is_worked_out_by_another_replica(self) -> None:
        made = deliveries(A, B, C)
        giver = held(made)
        others = {A, B, C} - {giver}
        made.gradient(giver, STEP, M, 0.5)
        asked = made.redo(M, "corrupt", 1.0, malformed_by=giver)
        assert {peer for peer, _ in questions(asked)} == others
        assert made.receipt(giver, receipt("known", 2), 1.1) == []
        assert held_by(made) is None, "its word does not count any more"
        answers = [made.receipt(other, receipt("absent", 2), 1.1) for other in sorted(others)]
        [(other, attempt)] = offers(list(answers[-1]))
        assert other in others
        [(last, attempt)] = offers(made.receipt(other, receipt("busy", attempt), 1.2))
        assert {last} == others - {other}
        [(again, attempt)] = offers(made.receipt(last, receipt("busy", attempt), 1.3))
        assert again == other

    def test_if_nobody_else_can_have_it_the_giver_is_asked_again_after_a_pause(self) -> None:
        made = deliveries(A)
        held(made)
        for n in range(3):
            now = 2.0 * n
            made.gradient(A, STEP, M, now)
            assert not questions(made.redo(M, "corrupt", now, malformed_by=A))
            made.update({A: 1.0 + n}, STEP, now + 0.1)  # news does not shorten it
            assert made.next_deadline() == now + ANSWER_S
            [(to, attempt)] = questions(made.tick(now + ANSWER_S))
            assert to == A
            made.receipt(A, receipt("known", attempt), now + ANSWER_S)
            assert held_by(made) == A

    def test_of_a_closed_step_only_the_giver_may_have_a_gradient(self) -> None:
        made = deliveries(A, B)
        giver = held(made)
        made.gradient(giver, STEP, M, 0.5)
        made.update(rated({A, B}), STEP + 1, 0.6)
        assert not questions(made.redo(M, "corrupt", 1.0, malformed_by=giver))
        assert {p for p, _ in questions(made.tick(1.0 + ANSWER_S))} == {A, B}

    def test_another_replica_comes_while_only_the_giver_was_there(self) -> None:
        made = deliveries(A)
        held(made)
        made.gradient(A, STEP, M, 0.5)
        made.redo(M, "corrupt", 1.0, malformed_by=A)
        made.update(rated({A, B}), STEP, 1.5)
        assert questions(made.tick(1.0 + ANSWER_S)) == [(B, 2)]
        assert offers(made.receipt(B, receipt("absent", 2), 2.1)) == [(B, 3)]

    def test_who_ran_it_as_well_is_waited_for_anew(self) -> None:
        made = deliveries(A, B)
        first = held(made)
        second = B if first == A else A
        made.next_hop[second].charged += 1
        made._send(made._open[M], second, 0.1)
        made.gradient(second, STEP, M, 0.5)
        assert made.next_deadline() is None
        made.redo(M, "corrupt", 1.0, malformed_by=second)
        assert held_by(made) == first
        assert made.next_deadline() == 1.0 + UNMEASURED_S


class TestBlame:
    """A replica of the stage between: A is before it, B and C are behind it."""

    @staticmethod
    def pipeline(*behind: PeerId) -> Pipeline:
        made = Pipeline(Place(STRANGER, 1, 3, 4), 0)
        stages = [[A], [STRANGER], behind]
        made.update_view(
            SwarmView.of([[Replica(peer, 0, True) for peer in peers] for peers in stages]), 0.0
        )
        made.forward(A, Forward(1, 0, 0, 1, 8, False), 0.0)
        return made

    @staticmethod
    def failed(made: Pipeline, giver: PeerId, now: float, part: int = 0) -> list[object]:
        """A gradient comes, and the worker refuses a payload of its pass."""
        taken = made.backward(giver, Backward(1, 0, 0, 1), now)
        assert [e.task for e in taken if isinstance(e, Compute)] == [BackwardTask(0, 0)]
        return list(made.computed(BackwardTask(0, 0), Outcome(error="codec", part=part), now))

    def sent(self, made: Pipeline) -> PeerId:
        [(to, attempt)] = offers(made.computed(ForwardTask(0, 0), Outcome(), 0.1))
        made.receipt(to, Receipt(2, 0, 0, attempt, "accepted"), 0.1)
        return to

    def test_who_only_asked_for_a_microbatch_has_not_given_it(self) -> None:
        made = self.pipeline(B)
        made.have(C, Have(1, 0, 0, 1), 0.1)
        effects = made.computed(ForwardTask(0, 0), Outcome(error="codec", part=0), 0.1)
        assert blamed(effects) == [(A, 20)]
        told = [e.peer for e in effects if isinstance(e, Send)]
        assert set(told) == {A, C}

    def test_who_gave_a_malformed_gradient_is_blamed_and_another_one_runs_it(self) -> None:
        made = self.pipeline(B, C)
        giver = self.sent(made)
        other = B if giver == C else C
        effects = self.failed(made, giver, 0.2)
        assert blamed(effects) == [(giver, 20)]
        [(asked, attempt)] = questions(effects)
        assert asked == other
        absent = Receipt(2, 0, 0, attempt, "absent")
        [(to, _)] = offers(made.receipt(other, absent, 0.3))
        assert to == other
        made.backward(other, Backward(1, 0, 0, 1), 0.4)
        made.computed(BackwardTask(0, 0), Outcome(), 0.5)
        assert made.done() == {0}

    def test_the_same_bytes_again_and_again_cost_their_giver_the_link(self) -> None:
        made, now, points = self.pipeline(B), 0.2, 0
        giver = self.sent(made)
        while points < 100 and now < 10.0:
            points += sum(cost for _, cost in blamed(self.failed(made, giver, now)))
            now += ANSWER_S
            [(_, attempt)] = questions(made.tick(now))
            made.receipt(giver, Receipt(2, 0, 0, attempt, "known"), now)
        assert now == pytest.approx(0.2 + 5 * ANSWER_S)

    def test_our_own_input_gone_bad_is_nobodys_fault(self) -> None:
        made = self.pipeline(B)
        effects = self.failed(made, self.sent(made), 0.2, part=1)
        assert [e.kind for e in effects if isinstance(e, Fault)] == ["internal"]
        assert not blamed(effects)
