"""Deliveries to the next stage: one holder per microbatch, found again whatever happens to it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.effects import Explain
from protocol.ids import PeerId, peer_id_from_key
from protocol.pace import ANSWER_S, FORGET_S, LOOK_S, LOST_S
from protocol.pipeline.delivery import ABSENT, Deliveries
from protocol.pipeline.effects import LossTask, Outcome, Rerouted, SendPayload
from protocol.pipeline.pipeline import Pipeline
from protocol.pipeline.place import Place
from protocol.pipeline.timing import MIN_SAMPLES, UNMEASURED_S
from protocol.rounds.obstruction import TIMES
from protocol.wire.messages import Forward, Have, Receipt, Verdict
from tests.support.effects import sent

A, B, C, STRANGER = (peer_id_from_key(bytes([n]) * 32) for n in range(4))
STEP, M = 2, 25
STAGE = 1


def receipt(verdict: Verdict, *, step: int = STEP, microbatch: int = M) -> Receipt:
    return Receipt(STAGE, step, microbatch, verdict)


def rated(live: Iterable[PeerId]) -> dict[PeerId, float]:
    """Replicas that have not said how fast they are."""
    return dict.fromkeys(live, 0.0)


def deliveries(*live: PeerId) -> Deliveries:
    made = Deliveries(STAGE)
    made.update(rated(live), STEP, 0.0)
    return made


def offers(effects: list[object]) -> list[PeerId]:
    """The target of the boundary."""
    return [peer for peer, _ in sent(effects, Forward)]


def questions(effects: list[object]) -> list[PeerId]:
    return [peer for peer, _ in sent(effects, Have)]


def reroutes(effects: list[object]) -> list[PeerId]:
    """Whose microbatches go to others."""
    return [e.lost_peer for e in effects if isinstance(e, Rerouted)]


def offered(made: Deliveries) -> PeerId:
    """Start a delivery; where it went."""
    [peer] = offers(made.start(STEP, M, again=False, now=0.0))
    return peer


def held(made: Deliveries) -> PeerId:
    peer = offered(made)
    assert made.receipt(peer, receipt("known"), 0.0) == []
    return peer


def held_by(made: Deliveries, m: int = M) -> PeerId | None:
    """The replica that answers for a microbatch."""
    return next((holder.peer for holder in made._open[m].holders), None)


def load(made: Deliveries) -> int:
    """The microbatches that all replicas are charged with."""
    accounts = made.next_hop.accounts.values()
    return sum(account.charged for account in accounts)


def due(made: Deliveries) -> float | None:
    """When something is to be done next, whatever comes."""
    return min((d.at for d in made._wakeful() if d.at is not None), default=None)


def test_without_a_replica_it_waits_for_one() -> None:
    made = deliveries()
    assert made.start(STEP, M, again=False, now=0.0) == []
    assert due(made) is None
    assert offers(made.update(rated({B}), STEP, 5.0)) == [B]


class TestRefusals:
    def test_where_everybody_is_busy_all_rest_for_a_moment(self) -> None:
        made = deliveries(A, B)
        for _ in range(2):
            peer = offered(made)
            made.receipt(peer, receipt("busy"), 0.0)
        assert offers(made.tick(LOOK_S - 0.1)) == []
        assert set(offers(made.tick(LOOK_S))) < {A, B}

    def test_what_is_given_back_is_asked_for_and_goes_to_another_replica(self) -> None:
        """That one may count it already."""
        made = deliveries(A, B)
        peer = offered(made)
        [other] = questions(made.receipt(peer, receipt("declined"), 1.0))
        assert {peer, other} == {A, B}
        assert offers(made.receipt(other, receipt("absent"), 1.1)) == [other]
        made.discard(M)
        assert {made.next_hop.choose(1.0) for _ in range(4)} == {A, B}

    def test_absent_asks_who_else_has_it(self) -> None:
        made = deliveries(A, B)
        effects = made.receipt(held(made), receipt("absent"), 1.0)
        assert set(questions(effects)) == {A, B}


@pytest.mark.parametrize("refuser_brings", [False, True])
def test_no_charge_outlives_its_microbatch(refuser_brings: bool) -> None:
    """A leak would turn work away from a replica without end."""
    made = deliveries(A, B)
    peer = offered(made)
    assert load(made) > 0
    made.receipt(peer, receipt("busy"), 0.1)
    other = B if peer == A else A
    made.receipt(other, receipt("known"), 0.2)
    assert load(made) == 1
    made.gradient(peer if refuser_brings else other, STEP, M, 0.3)
    assert load(made) == 0
    made.start(STEP, M + 1, again=False, now=0.4)
    made.discard(M + 1)
    assert load(made) == 0
    made.start(STEP, M + 2, again=False, now=0.5)
    made.forget(STEP)
    assert load(made) == 0


class TestLosses:
    @pytest.mark.parametrize("returned", [False, True])
    def test_a_lost_holder_is_replaced_also_after_its_gradient(self, returned: bool) -> None:
        """Its ledger died with it: the microbatch has to be counted again."""
        made = deliveries(A, B)
        lost = held(made)
        if returned:
            assert made.gradient(lost, STEP, M, 0.5)
        other = B if lost == A else A
        effects = made.update(rated({other}), STEP, 1.0)
        assert questions(effects) == [other]
        assert reroutes(effects) == [lost]
        answer = made.receipt(other, receipt("absent"), 1.1)
        assert offers(answer) == [other]

    def test_whoever_knows_it_already_is_not_sent_it_again(self) -> None:
        made = deliveries(A, B, C)
        lost = held(made)
        left = {A, B, C} - {lost}
        made.update(rated(left), STEP, 1.0)
        knows = min(left)
        assert made.receipt(knows, receipt("known"), 1.1) == []
        assert held_by(made) == knows
        assert made.gradient(knows, STEP, M, 2.0)

    def test_a_step_closed_there_is_asked_for_and_never_offered(self) -> None:
        made = deliveries(A, B)
        lost = held(made)
        other = B if lost == A else A
        effects = made.update(rated({other}), STEP + 1, 1.0)
        assert questions(effects) == [other]
        made.receipt(other, receipt("absent"), 1.1)
        deadline = due(made)
        again = made.tick(deadline)
        assert offers(again) == []
        assert questions(again) == [other]

    def test_a_closed_step_whose_gradient_is_here_needs_nothing(self) -> None:
        made = deliveries(A, B)
        lost = held(made)
        made.gradient(lost, STEP, M, 0.5)
        effects = made.update(rated({A, B} - {lost}), STEP + 1, 1.0)
        assert not offers(effects)
        assert not questions(effects)

    def test_what_may_be_lost_is_asked_for_before_it_is_late(self) -> None:
        made = deliveries(A, B)
        silent = offered(made)
        asked = made.tick(LOST_S)
        assert (questions(asked), offers(asked)) == ([silent], [])
        assert offers(made.tick(LOST_S + ANSWER_S)) == [A if silent == B else B]

    def test_a_corrupt_gradient_is_fetched_again(self) -> None:
        made = deliveries(A)
        held(made)
        made.gradient(A, STEP, M, 0.5)
        assert questions(made.redo(M, 1.0, malformed_by=None)) == [A]
        made.receipt(A, receipt("known"), 1.1)
        assert due(made) is not None  # the wait for the gradient begins again


class TestCrowdsThatHaveShownNothing:
    """Identities are free, and each may say that it serves the next stage."""

    def lost_at_one(self, *, suspended: bool = False) -> tuple[Deliveries, PeerId]:
        """A is measured; a microbatch is out at B or C, which is lost; who is left of the two."""
        made = deliveries(A, B, C)
        for _ in range(MIN_SAMPLES):
            made.next_hop.accounts[A].settle(1.0, 1, 0.0)
        if suspended:
            made.next_hop.accounts[A].struck(0.5)
        lost = offered(made)
        while lost == A:
            made.discard(M)
            made.next_hop.accounts[A].charged += 1
            lost = offered(made)
        for _ in range(9):
            made.next_hop.accounts[A].charged += 1
        made.update(rated({A, B, C} - {lost}), STEP, 1.0)
        [left] = {B, C} - {lost}
        return made, left

    def sent_again(self, made: Deliveries) -> PeerId:
        [peer] = offers(made.tick(1.0 + ANSWER_S))
        return peer

    def test_what_one_of_them_lost_goes_to_a_replica_that_has_brought_work_however_busy(
        self,
    ) -> None:
        made, _ = self.lost_at_one()
        assert self.sent_again(made) == A

    def test_who_waits_for_one_of_them_is_done_before_its_siblings_blame_it(self) -> None:
        """They wait for what it has of the step, and cannot see for whom it waits itself."""
        made = deliveries(A, B, C)
        for _ in range(MIN_SAMPLES):
            made.next_hop.accounts[A].settle(0.1, 1, 0.0)
        for _ in range(99):
            made.next_hop.accounts[A].charged += 1
        assert offered(made) != A
        now, sent_to = 0.0, None
        while sent_to is None:
            now = due(made) or 0.0
            made.next_hop.accounts[A].brought(now)
            sent_to = next(iter(offers(made.tick(now))), None)
        assert sent_to == A
        assert now + 1.0 < 2 * ANSWER_S * TIMES["work"]

    def test_it_goes_to_another_of_them_if_no_other_is_open(self) -> None:
        made, left = self.lost_at_one(suspended=True)
        assert self.sent_again(made) == left


class TestHostileAnswers:
    @pytest.mark.parametrize(
        ("sender", "answer"),
        [
            (STRANGER, receipt("known")),
            (STRANGER, receipt("busy")),
            (STRANGER, receipt("absent")),
            (A, receipt("known", step=STEP + 1)),
            (A, receipt("known", microbatch=M + 1)),
        ],
    )
    def test_receipts_that_answer_nothing(self, sender: PeerId, answer: Receipt) -> None:
        made = deliveries(A)
        offered(made)
        assert made.receipt(sender, answer, 1.0) == []
        assert held_by(made) == A
        assert due(made) == LOST_S

    @pytest.mark.parametrize(
        ("sender", "step", "microbatch"),
        [(STRANGER, STEP, M), (B, STEP, M), (A, STEP + 1, M), (A, STEP, M + 1)],
    )
    def test_gradients_nobody_asked_for(self, sender: PeerId, step: int, microbatch: int) -> None:
        made = deliveries(A)
        held(made)
        assert not made.gradient(sender, step, microbatch, 1.0)

    def test_a_stranger_cannot_claim_to_know(self) -> None:
        made = deliveries(A, B)
        lost = held(made)
        made.update(rated({A, B} - {lost}), STEP, 1.0)
        assert made.receipt(STRANGER, receipt("known"), 1.1) == []
        assert held_by(made) is None

    @given(st.integers(0, 2**32))
    def test_somebody_alive_always_gets_it_in_the_end(self, seed: int) -> None:
        """Any answers, losses and returns; then one honest replica, and the gradient comes."""
        source = random.Random(seed)
        made = deliveries(A, B, C)
        now = 0.0
        made.start(STEP, M, again=False, now=now)
        for _ in range(40):
            now += source.choice([0.01, 1.0, 25.0])
            sender = source.choice([A, B, C, STRANGER])
            match source.randrange(5):
                case 0:
                    live = set(source.sample([A, B, C], source.randint(0, 3)))
                    made.update(rated(live), STEP, now)
                case 1:
                    made.tick(now)
                case 2:
                    made.gradient(sender, STEP, M, now)
                case 3:
                    if made._open[M].returned:
                        made.redo(M, now, malformed_by=sender)
                case 4:
                    verdict = source.choice(get_args(Verdict))
                    made.receipt(sender, receipt(verdict), now)
        made.update({}, STEP, now)  # everybody is gone: their microbatches have to be sent again
        pending = made.update(rated({A}), STEP, now)
        for _ in range(10):
            if offers(pending):
                made.receipt(A, receipt("known"), now)
                break
            for peer in questions(pending):
                pending = made.receipt(peer, receipt("absent"), now)
            if not offers(pending):
                now += ANSWER_S
                pending = made.tick(now)
        assert held_by(made) == A, f"seed {seed}"
        assert made.gradient(A, STEP, M, now)
        assert due(made) is None


# --- malformed tensors -------------------------------------------------------------------------


class TestGettingAnotherGradient:
    def test_a_malformed_gradient_is_worked_out_by_another_replica(self) -> None:
        made = deliveries(A, B, C)
        giver = held(made)
        others = {A, B, C} - {giver}
        made.gradient(giver, STEP, M, 0.5)
        asked = made.redo(M, 1.0, malformed_by=giver)
        assert set(questions(asked)) == others
        assert made.receipt(giver, receipt("known"), 1.1) == []
        assert held_by(made) is None, "its word does not count any more"
        answers = [made.receipt(other, receipt("absent"), 1.1) for other in sorted(others)]
        [other] = offers(list(answers[-1]))
        assert other in others
        [last] = offers(made.receipt(other, receipt("busy"), 1.2))
        assert {last} == others - {other}
        assert made.receipt(last, receipt("busy"), 1.3) == []
        asked = made.tick(1.2 + LOOK_S)
        answers = [made.receipt(p, receipt("absent"), 1.8) for p in questions(asked)]
        assert offers(list(answers[-1])) == [other], "the last one rests"

    def test_who_ran_it_as_well_is_waited_for_anew(self) -> None:
        made = deliveries(A, B)
        first = held(made)
        second = B if first == A else A
        made.next_hop.accounts[second].charged += 1
        made._send(made._open[M], second, 0.1)
        made.gradient(second, STEP, M, 0.5)
        assert due(made) is None
        made.redo(M, 1.0, malformed_by=second)
        assert held_by(made) == first
        assert due(made) == 1.0 + UNMEASURED_S


def test_a_question_brings_no_tensors_without_end() -> None:
    made = Pipeline(Place(STRANGER, 1, 2, 4), 0)
    made.forward(A, Forward(1, 0, 0, False), b"", 0.0)
    made.computed(LossTask(0, 0), Outcome(), 0.1)

    def brought(asker: PeerId, *times: float) -> list[float]:
        return [
            now
            for now in times
            for effect in made.have(asker, Have(1, 0, 0), now)
            if isinstance(effect, SendPayload)
        ]

    assert brought(A, *(0.1 + second for second in range(100))) == [1.1, 3.1, 7.1, 15.1, 31.1, 63.1]
    assert brought(B, 9.0, 9.5, 10.0) == [9.0, 10.0]


# --- late microbatches go to a second replica, too ---------------------------------------------


USUAL_S = 1.0
LATE_S = 2 * ANSWER_S
"""A replica that needs a second is late then."""


def answer(m: int, verdict: Verdict, step: int = STEP) -> Receipt:
    return Receipt(STAGE, step, m, verdict)


def struck(line: Line) -> list[PeerId]:
    return [peer for peer, account in line.made.next_hop.accounts.items() if account.strikes]


class Line:
    """Deliveries to two replicas that are known to take a second; nothing is out."""

    def __init__(self) -> None:
        self.made = Deliveries(STAGE)
        self.made.update(rated({A, B}), STEP, 0.0)
        self.now, self.next = 0.0, STEP * 100
        for _ in range(3 * MIN_SAMPLES):
            pair = [self.send(), self.send()]
            self.now += USUAL_S
            for m, holder in pair:
                self.brings(holder, m)
                self.made.discard(m)

    def send(self) -> tuple[int, PeerId]:
        m, self.next = self.next, self.next + 1
        [peer] = offers(self.made.start(STEP, m, again=False, now=self.now))
        self.made.receipt(peer, answer(m, "known"), self.now)
        return m, peer

    def brings(self, peer: PeerId, m: int) -> None:
        assert self.made.gradient(peer, STEP, m, self.now)

    def tick(self, after_s: float) -> list[object]:
        """Look now and then, as the seat does."""
        until, effects = self.now + after_s, list[object]()
        while self.now < until:
            self.now = min(until, self.now + 0.5)
            effects += self.made.tick(self.now)
        return effects

    def sent_twice(self) -> tuple[int, PeerId, PeerId]:
        """A microbatch with two holders: it, the slow one, the other one."""
        m, slow = self.send()
        [other] = offers(self.tick(LATE_S))
        assert {slow, other} == {A, B}
        self.made.receipt(other, answer(m, "known"), self.now)
        return m, slow, other


class TestWhoElseGetsIt:
    def test_an_idle_one_and_why(self) -> None:
        line = Line()
        m, slow = line.send()
        assert due(line.made) == line.now + LATE_S
        effects = line.tick(LATE_S)
        [other] = offers(effects)
        assert other != slow
        assert questions(effects) == [slow], "it may have got lost"
        [words] = [effect.words for effect in effects if isinstance(effect, Explain)]
        assert f"microbatch {m}" in words
        assert "gets it too" in words
        assert reroutes(effects) == []

    def test_each_replica_once(self) -> None:
        line = Line()
        line.sent_twice()
        assert offers(line.tick(9.0)) == []

    def test_nobody_where_nobody_brings_anything(self) -> None:
        """Then the stages behind are slow."""
        line = Line()
        line.send()
        line.send()
        assert offers(line.tick(9.0)) == []
        assert struck(line) == []

    def test_a_busy_one_that_brings_results_meanwhile(self) -> None:
        line = Line()
        sent = [line.send() for _ in range(4)]
        slow = sent[0][1]
        own = [m for m, peer in sent if peer == slow]
        [first, _] = [(m, peer) for m, peer in sent if peer != slow]
        line.tick(USUAL_S)
        line.brings(first[1], first[0])
        effects = line.tick(LATE_S)
        assert set(offers(effects)) == {first[1]}
        assert len(offers(effects)) == len(own)
        assert struck(line) == [slow]

    def test_only_an_idle_one_while_the_holder_brings_others(self) -> None:
        line = Line()
        sent = [line.send() for _ in range(4)]
        for m, peer in sent[2:]:
            line.tick(0.5)
            line.brings(peer, m)
        assert offers(line.tick(LATE_S)) == []
        line.brings(sent[1][1], sent[1][0])
        assert offers(line.tick(LATE_S)) == [sent[1][1]]
        assert struck(line) == []

    def test_nobody_before_the_next_stage_has_begun_the_step(self) -> None:
        line, early = Line(), (STEP + 1) * 100
        [peer] = offers(line.made.start(STEP + 1, early, again=False, now=line.now))
        line.made.receipt(peer, answer(early, "known", STEP + 1), line.now)
        effects = line.tick(100.0)
        assert offers(effects) == questions(effects) == []
        line.made.update(rated({A, B}), STEP + 1, line.now)
        line.tick(USUAL_S)
        assert line.made.gradient(peer, STEP + 1, early, line.now)
        took_s = line.made.next_hop.accounts[peer].gradient.mean_s
        assert took_s < 2 * USUAL_S  # it began when its stage did

    def early(self, line: Line) -> tuple[int, PeerId]:
        """A microbatch of a step that a stage behind the next one has not begun."""
        line.made.update(rated({A, B}), STEP + 1, line.now, slowest=STEP)
        m = (STEP + 1) * 100
        [peer] = offers(line.made.start(STEP + 1, m, again=False, now=line.now))
        return m, peer

    def test_nor_before_the_stages_behind_have(self) -> None:
        line = Line()
        m, peer = self.early(line)
        line.made.receipt(peer, answer(m, "known", STEP + 1), line.now)
        assert offers(line.tick(100.0)) == []

    def test_but_an_answer_can_be_late(self) -> None:
        line = Line()
        _, peer = self.early(line)
        asked = line.tick(LATE_S)
        assert (questions(asked), offers(asked)) == ([peer], [])
        [other] = offers(line.tick(ANSWER_S))
        assert struck(line) == [peer]
        assert other != peer


class TestStrikes:
    def strike(self, line: Line, slow: PeerId) -> list[object]:
        """One microbatch is late at ``slow``; the other one brings it and what it had."""
        sent = [line.send()]
        while sent[-1][1] != slow:
            sent.append(line.send())
        line.tick(USUAL_S)
        for m, peer in sent[:-1]:
            line.brings(peer, m)
        m = sent[-1][0]
        effects: list[object] = []
        while not offers(effects):
            effects = line.tick(0.5)
            assert line.now < 1e3
        line.brings(offers(effects)[0], m)
        line.made.forget(STEP)
        return effects

    def test_each_in_a_row_makes_it_wait_for_longer(self) -> None:
        line = Line()
        for n in range(3):
            self.strike(line, A)
            waits_s = line.made.next_hop.accounts[A].suspended_until - line.now
            assert waits_s == FORGET_S * 2**n
            line.tick(waits_s)

    def test_our_own_sleep_proves_nothing(self) -> None:
        line = Line()
        line.send()
        line.now += 500.0
        assert offers(line.made.tick(line.now)) == []
        assert due(line.made) == line.now + LATE_S


class TestLostOnTheWay:
    def test_what_never_arrives_is_sent_again(self) -> None:
        line = Line()
        line.made.update(rated({A}), STEP, line.now)
        [peer] = offers(line.made.start(STEP, 999, again=False, now=line.now))
        effects: list[object] = []
        for _ in range(ABSENT):
            assert effects == []
            assert questions(line.tick(LATE_S)) == [peer]
            effects = line.made.receipt(peer, answer(999, "absent"), line.now)
        [peer] = questions(effects)
        again = line.made.receipt(peer, answer(999, "absent"), line.now)
        assert offers(list(again)) == [A]


class TestTwoHolders:
    def test_the_first_gradient_counts_and_the_second_changes_nothing(self) -> None:
        line = Line()
        m, slow, other = line.sent_twice()
        line.brings(other, m)
        assert held_by(line.made, m) == other
        assert load(line.made) > 0, "the slow one is busy with it still"
        line.now += 5
        line.brings(slow, m)
        assert held_by(line.made, m) == other
        assert load(line.made) == 0
        assert due(line.made) is None

    @pytest.mark.parametrize("left", ["slow", "other", "nobody"])
    def test_a_dead_holder_leaves_it_to_the_other(self, left: str) -> None:
        line = Line()
        m, slow, other = line.sent_twice()
        there = {"slow": [slow], "other": [other], "nobody": []}[left]
        effects = line.made.update(rated(there), STEP, line.now)
        assert questions(effects) == offers(effects) == []
        assert reroutes(effects)[:1] == ([] if left == "slow" else [slow])
        assert [holder.peer for holder in line.made._open[m].holders] == there
        assert load(line.made) == len(there)

    def test_a_dead_winner_is_asked_after_among_all(self) -> None:
        """The slow one may have left its double to the winner: only asking tells."""
        line = Line()
        m, slow, other = line.sent_twice()
        line.brings(other, m)
        effects = line.made.update(rated({slow}), STEP, line.now)
        assert questions(effects) == [slow]

    def test_both_may_die_at_once_after_the_gradient(self) -> None:
        line = Line()
        m, _, other = line.sent_twice()
        line.brings(other, m)
        assert reroutes(line.made.update({}, STEP, line.now)) == [other]
        assert load(line.made) == 0

    def test_who_was_overtaken_is_expected_to_be_slower(self) -> None:
        line = Line()
        m, slow, other = line.sent_twice()
        accounts = line.made.next_hop.accounts
        before, samples = accounts[slow].gradient.mean_s, accounts[other].gradient.samples
        line.brings(other, m)
        assert accounts[slow].gradient.mean_s > before
        assert accounts[other].gradient.samples == samples, "Karn: it was sent before"
