"""Backups: a late microbatch goes to an idle replica too, within bounds; the first gradient
counts."""

from __future__ import annotations

from protocol.effects import Explain, Penalise
from protocol.ids import PeerId
from protocol.pipeline.backups import BackupBudget, allowance, backup_at, slower_at
from protocol.pipeline.delivery import PATIENCE, Deliveries
from protocol.pipeline.timing import MIN_SAMPLES, Timing
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


def answer(m: int, verdict: Verdict, attempt: int) -> Receipt:
    return Receipt(STAGE, STEP, m, attempt, verdict, 0)


def known(seconds: float) -> Timing:
    timing = Timing()
    for _ in range(9):
        timing.note(seconds)
    return timing


class Line:
    """Deliveries to two replicas that are known to take a second; one microbatch is out."""

    def __init__(self, allowed: int = 9, hops_left: int = 2) -> None:
        self.made = Deliveries(STAGE, lambda m: 10, hops_left=hops_left)
        self.made.update(rated({A, B}), STEP, 0.0)
        self.made.backups.allowed = allowed
        self.now, self.next = 0.0, STEP * 100
        for _ in range(3 * MIN_SAMPLES):
            pair = [self.send(), self.send()]
            self.now += USUAL_S
            for m, holder in pair:
                assert self.made.gradient(holder, STEP, m, self.now)
                self.made.discard(m)

    def send(self) -> tuple[int, PeerId]:
        m, self.next = self.next, self.next + 1
        [(peer, attempt)] = offers(list(self.made.start(STEP, m, again=False, now=self.now)))
        self.made.receipt(peer, answer(m, "accepted", attempt), self.now)
        return m, peer

    def tick(self, after_s: float) -> list[object]:
        self.now += after_s
        return list(self.made.tick(self.now))

    def backed_up(self) -> tuple[int, PeerId, PeerId]:
        """A microbatch with two holders: it, the slow one, the other one."""
        m, slow = self.send()
        assert offers(self.tick(1.2 * USUAL_S)) == []
        [(other, attempt)] = offers(self.tick(2 * USUAL_S))
        assert {slow, other} == {A, B}
        self.made.receipt(other, answer(m, "accepted", attempt), self.now)
        return m, slow, other


class TestWhenOneIsMade:
    def test_what_is_late_goes_to_the_idle_one_and_says_why(self) -> None:
        line = Line()
        m, slow = line.send()
        due = line.made.next_deadline()
        assert due is not None
        assert due - line.now < 3 * USUAL_S
        effects = line.tick(due - line.now)
        [(other, _)] = offers(effects)
        assert other != slow
        [words] = [effect.words for effect in effects if isinstance(effect, Explain)]
        assert f"microbatch {m}" in words
        assert "nothing to do" in words
        assert reroutes(effects) == []
        assert not line.made.was_rerouted(m)

    def test_one_backup_per_microbatch(self) -> None:
        line = Line()
        line.backed_up()
        assert offers(line.tick(1.0)) == []

    def test_nobody_idle_no_backup(self) -> None:
        line = Line()
        line.send()
        line.send()
        assert offers(line.tick(2.5)) == []

    def test_no_more_than_allowed_in_a_step(self) -> None:
        line = Line(allowed=2)
        for _ in range(2):
            m, slow, other = line.backed_up()
            line.made.gradient(other, STEP, m, line.now)
            line.made.gradient(slow, STEP, m, line.now)
        line.send()
        assert offers(line.tick(2.5)) == []

    def test_the_last_stage_has_begun_what_it_has_only_one_of(self) -> None:
        line = Line(hops_left=1)
        line.send()
        assert offers(line.tick(2.5)) == []

    def test_a_step_that_the_next_stage_has_not_begun_waits(self) -> None:
        line = Line()
        early = (STEP + 1) * 100
        [(peer, attempt)] = offers(
            list(line.made.start(STEP + 1, early, again=False, now=line.now))
        )
        receipt = Receipt(STAGE, STEP + 1, early, attempt, "accepted", 0)
        line.made.receipt(peer, receipt, line.now)
        for _ in range(100):  # it answers, and need not do more
            effects = line.tick(1.0)
            assert offers(effects) == reroutes(effects) == []
            if questions(effects):
                line.made.receipt(
                    peer, Receipt(STAGE, STEP + 1, early, attempt, "known", 0), line.now
                )
        line.made.update(rated({A, B}), STEP + 1, line.now)
        assert line.made.gradient(peer, STEP + 1, early, line.now + USUAL_S)
        assert line.made.next_hop.timing(peer).mean_s < 2 * USUAL_S  # it began when its stage did

    def test_disabled(self) -> None:
        line = Line()
        line.made.backups.enabled = False
        line.send()
        assert offers(line.tick(2.5)) == []


class TestTwoHolders:
    def test_the_first_gradient_counts_and_the_second_changes_nothing(self) -> None:
        line = Line()
        m, slow, other = line.backed_up()
        assert line.made.gradient(other, STEP, m, line.now)
        assert line.made._open[m].peer == other
        assert load(line.made) > 0, "the slow one is busy with it still"
        assert line.made.gradient(slow, STEP, m, line.now + 5)
        assert line.made._open[m].peer == other
        assert load(line.made) == 0
        assert line.made.next_deadline() is None

    def test_the_backup_may_be_in_vain(self) -> None:
        line = Line()
        m, slow, other = line.backed_up()
        assert line.made.gradient(slow, STEP, m, line.now)
        assert line.made._open[m].peer == slow
        assert line.made.receipt(other, answer(m, "absent", 2), line.now) == []
        assert load(line.made) == 0

    def test_a_dead_holder_leaves_it_to_the_backup(self) -> None:
        line = Line()
        m, slow, other = line.backed_up()
        effects = list(line.made.update(rated({other}), STEP, line.now))
        assert questions(effects) == offers(effects) == []
        assert reroutes(effects) == [(slow, other)]
        assert line.made.gradient(other, STEP, m, line.now)

    def test_a_dead_backup_changes_nothing(self) -> None:
        line = Line()
        m, slow, _ = line.backed_up()
        assert reroutes(list(line.made.update(rated({slow}), STEP, line.now))) == []
        assert line.made._open[m].peer == slow
        assert load(line.made) == 1.0

    def test_both_dead(self) -> None:
        line = Line()
        m, _, _ = line.backed_up()
        line.made.update({}, STEP, line.now)
        assert line.made._open[m].state == "idle"
        assert load(line.made) == 0

    def test_a_dead_winner_is_asked_after_among_all(self) -> None:
        """The slow one may have left its double to the winner: only asking tells."""
        line = Line()
        m, slow, other = line.backed_up()
        line.made.gradient(other, STEP, m, line.now)
        effects = list(line.made.update(rated({slow}), STEP, line.now))
        assert [peer for peer, _ in questions(effects)] == [slow]

    def test_a_backup_that_is_busy_is_none(self) -> None:
        line = Line()
        m, slow = line.send()
        [(other, attempt)] = offers(line.tick(3.0))
        assert line.made.receipt(other, answer(m, "busy", attempt), line.now) == []
        assert line.made._open[m].peer == slow
        assert line.made._open[m].backup is None

    def test_who_was_overtaken_is_expected_to_be_slower(self) -> None:
        line = Line()
        m, slow, other = line.backed_up()
        before = line.made.next_hop.timing(slow).mean_s
        samples = line.made.next_hop.timing(other).samples
        line.made.gradient(other, STEP, m, line.now)
        assert line.made.next_hop.timing(slow).mean_s > before
        assert line.made.next_hop.timing(other).samples == samples, "Karn: it was sent before"


class TestSuspicion:
    def test_the_silent_are_blamed_once_for_all_they_have(self) -> None:
        line = Line()
        line.made.backups.enabled = False
        sent = [line.send() for _ in range(6)]
        victim = sent[0][1]
        for m, peer in sent:
            if peer != victim:
                line.made.gradient(peer, STEP, m, line.now + USUAL_S)
        effects: list[object] = []
        for _ in range(24):
            effects += line.tick(0.25)
        blamed = [effect for effect in effects if isinstance(effect, Penalise)]
        assert [effect.peer for effect in blamed] == [victim]
        assert len(reroutes(effects)) == 3
        assert victim not in line.made.next_hop.idle(line.now)

    def test_who_answers_is_slow_and_keeps_what_it_has(self) -> None:
        line = Line()
        line.made.update(rated({A}), STEP, line.now)
        m, peer = line.send()
        for _ in range(PATIENCE + 2):  # as often as it may, two stages from the end
            due = line.made.next_deadline()
            assert due is not None
            [(_, attempt)] = questions(line.tick(due - line.now))
            assert line.made.receipt(peer, answer(m, "known", attempt), line.now + 0.1) == []
        assert line.made._open[m].peer == peer
        due = line.made.next_deadline()
        assert due is not None
        assert reroutes(line.tick(due - line.now)) == [(peer, None)]

    def test_while_a_stage_behind_closes_the_step_before_nothing_can_come(self) -> None:
        line = Line()
        line.made.update(rated({A}), STEP, line.now, slowest=STEP - 1)
        m, peer = line.send()
        for _ in range(10 * PATIENCE):
            due = line.made.next_deadline()
            assert due is not None
            effects = line.tick(due - line.now)
            assert reroutes(effects) == []
            if questions(effects):
                line.made.receipt(peer, answer(m, "known", 1), line.now)
        line.made.update(rated({A}), STEP, line.now, slowest=STEP)
        assert line.made._open[m].held_by(peer).answers == 0  # type: ignore[union-attr]

    def test_our_own_sleep_proves_nothing(self) -> None:
        line = Line()
        line.made.backups.enabled = False
        line.send()
        assert questions(line.tick(10.0))
        effects = line.tick(500.0)
        assert questions(effects)
        assert reroutes(effects) == []

    def test_a_late_forward_of_one_that_answers_is_on_its_way(self) -> None:
        line = Line()
        line.made.update(rated({A}), STEP, line.now)
        [(peer, attempt)] = offers(list(line.made.start(STEP, 999, again=False, now=line.now)))
        [(_, asked)] = questions(line.tick(5.0))
        assert asked == attempt
        assert line.made.receipt(peer, answer(999, "absent", attempt), line.now) == []
        assert line.made._open[999].state == "offered"
        line.made.receipt(peer, answer(999, "accepted", attempt), line.now)
        assert line.made._open[999].state == "held"

    def test_a_receipt_said_twice_renews_nothing(self) -> None:
        line = Line()
        m, peer = line.send()
        due = line.made.next_deadline()
        line.made.receipt(peer, answer(m, "accepted", 1), line.now + 1.0)
        assert line.made.next_deadline() == due

    def test_a_gradient_for_what_was_left_to_another_is_no_offence(self) -> None:
        line = Line()
        m, peer = line.send()
        line.made.discard(m)
        assert line.made.gradient(peer, STEP, m, line.now)
        line.made.forget(STEP)
        assert not line.made.gradient(peer, STEP, m, line.now)


def test_the_known_slow_are_not_waited_for_when_nothing_else_is_left() -> None:
    slow, fast = known(4.0), known(1.0)
    assert slower_at(slow, 1, 10.0, fast, 10.5) == 10.5
    assert slower_at(slow, 1, 10.0, fast, 13.0) > 13.0  # it is nearly done
    assert backup_at(slow, 1, 10.0, fast) >= 15.0


def test_a_budget_is_of_one_step() -> None:
    budget = BackupBudget(2)
    assert budget.left(3) == 2
    budget.spend()
    budget.spend()
    assert budget.left(3) == 0
    assert budget.left(4) == 2
    assert budget.left(3) == 0


def test_all_replicas_together_have_a_quarter_of_the_step() -> None:
    assert allowance(64, 1) == 16
    assert 4 * allowance(64, 4) == 16
    assert allowance(4, 32) == 1
