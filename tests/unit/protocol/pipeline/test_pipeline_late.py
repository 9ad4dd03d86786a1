"""A late microbatch goes to a second replica too; who brings nothing is struck."""

from __future__ import annotations

from protocol.effects import Explain
from protocol.ids import PeerId
from protocol.pace import ANSWER_S, FORGET_S
from protocol.pipeline.delivery import ABSENT, Deliveries
from protocol.pipeline.effects import Obstructs
from protocol.pipeline.next_hop import STRIKES
from protocol.pipeline.timing import MIN_SAMPLES
from protocol.wire.messages import Receipt, Verdict
from tests.support.pipeline_deliveries import (
    STAGE,
    STEP,
    A,
    B,
    load,
    offers,
    questions,
    rated,
    reroutes,
)

USUAL_S = 1.0
LATE_S = 2 * ANSWER_S
"""A replica that needs a second is late then."""


def answer(m: int, verdict: Verdict, attempt: int, step: int = STEP) -> Receipt:
    return Receipt(STAGE, step, m, attempt, verdict)


def named(effects: list[object]) -> list[PeerId]:
    return [effect.peer for effect in effects if isinstance(effect, Obstructs)]


class Line:
    """Deliveries to two replicas that are known to take a second; nothing is out."""

    def __init__(self) -> None:
        self.made = Deliveries(STAGE, lambda m: 10)
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
        [(peer, attempt)] = offers(self.made.start(STEP, m, again=False, now=self.now))
        self.made.receipt(peer, answer(m, "accepted", attempt), self.now)
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
        [(other, attempt)] = offers(self.tick(LATE_S))
        assert {slow, other} == {A, B}
        self.made.receipt(other, answer(m, "accepted", attempt), self.now)
        return m, slow, other


class TestWhoElseGetsIt:
    def test_an_idle_one_and_why(self) -> None:
        line = Line()
        m, slow = line.send()
        assert line.made.next_deadline() == line.now + LATE_S
        effects = line.tick(LATE_S)
        [(other, _)] = offers(effects)
        assert other != slow
        assert questions(effects) == [(slow, 1)], "it may have got lost"
        [words] = [effect.words for effect in effects if isinstance(effect, Explain)]
        assert f"microbatch {m}" in words
        assert "gets it too" in words
        assert reroutes(effects) == named(effects) == []
        assert not line.made.was_rerouted(m)

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
        assert line.made.next_hop.overdue() == []

    def test_a_busy_one_that_brings_results_meanwhile(self) -> None:
        line = Line()
        sent = [line.send() for _ in range(4)]
        slow = sent[0][1]
        own = [m for m, peer in sent if peer == slow]
        [first, _] = [(m, peer) for m, peer in sent if peer != slow]
        line.tick(USUAL_S)
        line.brings(first[1], first[0])
        effects = line.tick(LATE_S)
        assert {peer for peer, _ in offers(effects)} == {first[1]}
        assert len(offers(effects)) == len(own)
        assert line.made.next_hop.overdue() == [slow]

    def test_only_an_idle_one_while_the_holder_brings_others(self) -> None:
        line = Line()
        sent = [line.send() for _ in range(4)]
        for m, peer in sent[2:]:
            line.tick(0.5)
            line.brings(peer, m)
        assert offers(line.tick(LATE_S)) == []
        line.brings(sent[1][1], sent[1][0])
        assert offers(line.tick(LATE_S)) == [(sent[1][1], 2)]
        assert line.made.next_hop.overdue() == []

    def test_nobody_before_the_next_stage_has_begun_the_step(self) -> None:
        line, early = Line(), (STEP + 1) * 100
        [(peer, attempt)] = offers(line.made.start(STEP + 1, early, again=False, now=line.now))
        line.made.receipt(peer, answer(early, "accepted", attempt, STEP + 1), line.now)
        effects = line.tick(100.0)
        assert offers(effects) == questions(effects) == []
        line.made.update(rated({A, B}), STEP + 1, line.now)
        line.tick(USUAL_S)
        assert line.made.gradient(peer, STEP + 1, early, line.now)
        assert line.made.next_hop[peer].gradient.mean_s < 2 * USUAL_S  # it began when its stage did

    def early(self, line: Line) -> tuple[int, PeerId]:
        """A microbatch of a step that a stage behind the next one has not begun."""
        line.made.update(rated({A, B}), STEP + 1, line.now, slowest=STEP)
        m = (STEP + 1) * 100
        [(peer, _)] = offers(line.made.start(STEP + 1, m, again=False, now=line.now))
        return m, peer

    def test_nor_before_the_stages_behind_have(self) -> None:
        line = Line()
        m, peer = self.early(line)
        line.made.receipt(peer, answer(m, "accepted", 1, STEP + 1), line.now)
        assert offers(line.tick(100.0)) == []

    def test_but_a_receipt_can_be_late(self) -> None:
        line = Line()
        _, peer = self.early(line)
        [(other, attempt)] = offers(line.tick(LATE_S))
        assert attempt == 2
        assert line.made.next_hop.overdue() == [peer]
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
        line.brings(offers(effects)[0][0], m)
        line.made.forget(STEP)
        return effects

    def test_three_in_a_row_name_a_replica(self) -> None:
        line = Line()
        found = []
        for _ in range(STRIKES + 1):
            found.append(named(self.strike(line, A)))
            line.tick(FORGET_S)
        assert found == [[]] * (STRIKES - 1) + [[A]] * 2

    def test_our_own_sleep_proves_nothing(self) -> None:
        line = Line()
        line.send()
        line.now += 500.0
        assert offers(line.made.tick(line.now)) == []
        assert line.made.next_deadline() == line.now + LATE_S


class TestLostOnTheWay:
    def test_what_never_arrives_is_sent_again(self) -> None:
        line = Line()
        line.made.update(rated({A}), STEP, line.now)
        [(peer, attempt)] = offers(line.made.start(STEP, 999, again=False, now=line.now))
        effects: list[object] = []
        for _ in range(ABSENT):
            assert effects == []
            assert questions(line.tick(LATE_S)) == [(peer, attempt)]
            effects = line.made.receipt(peer, answer(999, "absent", attempt), line.now)
        [(peer, attempt)] = questions(effects)
        again = line.made.receipt(peer, answer(999, "absent", attempt), line.now)
        assert offers(list(again)) == [(A, attempt + 1)]

    def test_what_arrives_late_is_not(self) -> None:
        line = Line()
        line.made.update(rated({A}), STEP, line.now)
        line.made.start(STEP, 999, again=False, now=line.now)
        line.tick(LATE_S)
        assert line.made.receipt(A, answer(999, "absent", 1), line.now) == []
        line.made.receipt(A, answer(999, "known", 1), line.now)
        assert offers(line.tick(9.0)) == []
        assert line.made.gradient(A, STEP, 999, line.now)

    def test_a_receipt_said_twice_renews_nothing(self) -> None:
        line = Line()
        m, peer = line.send()
        due = line.made.next_deadline()
        line.made.receipt(peer, answer(m, "accepted", 1), line.now + 1.0)
        assert line.made.next_deadline() == due


class TestTwoHolders:
    def test_the_first_gradient_counts_and_the_second_changes_nothing(self) -> None:
        line = Line()
        m, slow, other = line.sent_twice()
        line.brings(other, m)
        assert line.made._open[m].peer == other
        assert load(line.made) > 0, "the slow one is busy with it still"
        line.now += 5
        line.brings(slow, m)
        assert line.made._open[m].peer == other
        assert load(line.made) == 0
        assert line.made.next_deadline() is None

    def test_the_second_may_be_in_vain(self) -> None:
        line = Line()
        m, slow, other = line.sent_twice()
        line.brings(slow, m)
        assert line.made._open[m].peer == slow
        assert line.made.receipt(other, answer(m, "absent", 2), line.now) == []
        assert load(line.made) == 0

    def test_a_dead_holder_leaves_it_to_the_other(self) -> None:
        line = Line()
        m, slow, other = line.sent_twice()
        effects = line.made.update(rated({other}), STEP, line.now)
        assert questions(effects) == offers(effects) == []
        assert reroutes(effects) == [(slow, other)]
        line.brings(other, m)

    def test_a_dead_second_changes_nothing(self) -> None:
        line = Line()
        m, slow, _ = line.sent_twice()
        assert reroutes(line.made.update(rated({slow}), STEP, line.now)) == []
        assert line.made._open[m].peer == slow
        assert load(line.made) == 1

    def test_both_dead(self) -> None:
        line = Line()
        m, _, _ = line.sent_twice()
        line.made.update({}, STEP, line.now)
        assert line.made._open[m].holders == []
        assert load(line.made) == 0

    def test_a_dead_winner_is_asked_after_among_all(self) -> None:
        """The slow one may have left its double to the winner: only asking tells."""
        line = Line()
        m, slow, other = line.sent_twice()
        line.brings(other, m)
        effects = line.made.update(rated({slow}), STEP, line.now)
        assert [peer for peer, _ in questions(effects)] == [slow]

    def test_a_second_one_that_is_busy_is_none(self) -> None:
        line = Line()
        m, slow = line.send()
        [(other, attempt)] = offers(line.tick(LATE_S))
        assert line.made.receipt(other, answer(m, "busy", attempt), line.now) == []
        assert [holder.peer for holder in line.made._open[m].holders] == [slow]

    def test_who_was_overtaken_is_expected_to_be_slower(self) -> None:
        line = Line()
        m, slow, other = line.sent_twice()
        before = line.made.next_hop[slow].gradient.mean_s
        samples = line.made.next_hop[other].gradient.samples
        line.brings(other, m)
        assert line.made.next_hop[slow].gradient.mean_s > before
        assert line.made.next_hop[other].gradient.samples == samples, "Karn: it was sent before"

    def test_a_gradient_for_what_was_left_to_another_is_no_offence(self) -> None:
        line = Line()
        m, peer = line.send()
        line.made.discard(m)
        line.brings(peer, m)
        line.made.forget(STEP)
        assert not line.made.gradient(peer, STEP, m, line.now)
