"""A member of a round: contributes exactly what the plan counts, applies what is committed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from round_members import (
    IDS,
    LEADER,
    ME,
    SIZE,
    STAGE,
    STEP,
    B,
    C,
    Table,
    blamed,
    digest,
    exchanging,
    kept,
    plan,
    ready,
    sent,
    tasks,
)

from protocol.pipeline.effects import (
    ApplyLocalTask,
    ApplyTask,
    ContributeTask,
    Fault,
    Outcome,
    PayloadKey,
    ReduceTask,
    SubtractTask,
)
from protocol.rounds.member import REFUSED, Progress
from protocol.rounds.plans import plan_digest
from protocol.wire.messages import Ready, Reduced, Shard


class TestTheUsualRound:
    def test_contribute_exchange_ready_apply(self) -> None:
        table, order, agreed = ready()
        assert agreed == plan_digest(LEADER, order, [digest(1), digest(2)], [2.0, 3.0])
        [task] = tasks(list(table.member.committed(1, agreed)))
        assert task == ApplyTask(
            STEP,
            1,
            tuple(order.bounds),
            (PayloadKey(STEP, "reduced", 0, 1, ME), PayloadKey(STEP, "reduced", 1, 1, B)),
            (2.0, 3.0),
        )

    def test_parts_are_summed_in_the_members_order(self) -> None:
        table = Table(8)
        order = plan({B: {9}, C: {10, 11}, ME: {8}})
        [task] = tasks(list(table.member.plan(LEADER, order)))
        assert isinstance(task, ContributeTask)
        table.member.contributed(task, Outcome())
        table.member.shard(C, Shard(STAGE, STEP, 1, 2))
        [reduce] = tasks(list(table.member.shard(B, Shard(STAGE, STEP, 1, 2))))
        assert isinstance(reduce, ReduceTask)
        assert [key.peer for key in reduce.parts] == [B, C, ME]
        assert reduce.size == order.bounds[3] - order.bounds[2]

    def test_alone_it_applies_its_own_sum(self) -> None:
        table = Table(*IDS)
        order = plan({ME: set(IDS)})
        [(_, message)] = sent(list(table.member.plan(LEADER, order)), Ready)
        assert isinstance(message, Ready)
        assert tasks(list(table.member.committed(1, message.digest))) == [ApplyLocalTask(STEP)]

    def test_alone_with_an_observer_it_broadcasts(self) -> None:
        table = Table(*IDS)
        [task] = tasks(list(table.member.plan(LEADER, plan({ME: set(IDS)}, observers=[C]))))
        assert isinstance(task, ContributeTask)
        [reduce] = tasks(list(table.member.contributed(task, Outcome())))
        assert isinstance(reduce, ReduceTask)
        effects = list(table.member.was_reduced(reduce, Outcome(digests=(digest(1),))))
        assert [to for to, _ in sent(effects, Reduced)] == [C]

    def test_messages_may_overtake_the_plan(self) -> None:
        table = Table(8, 9)
        assert kept(list(table.member.shard(B, Shard(STAGE, STEP, 1, 0))))
        assert kept(list(table.member.reduced(B, Reduced(STAGE, STEP, 1, 1, 3.0), digest(2))))
        [task] = tasks(list(table.member.plan(LEADER, plan({ME: {8, 9}, B: {10, 11}}))))
        assert isinstance(task, ContributeTask)
        [reduce] = tasks(list(table.member.contributed(task, Outcome())))
        assert isinstance(reduce, ReduceTask)
        effects = list(table.member.was_reduced(reduce, Outcome(digests=(digest(1),))))
        assert sent(effects, Ready)

    def test_a_shard_without_elements_is_nobodys_work(self) -> None:
        table = Table(8, 9)
        order = plan({ME: {8, 9}, B: {10, 11}}, bounds=[0, 0, SIZE])
        [task] = tasks(list(table.member.plan(LEADER, order)))
        assert isinstance(task, ContributeTask)
        effects = list(table.member.contributed(task, Outcome()))
        assert [m.shard for _, m in sent(effects, Shard)] == [1]  # type: ignore[attr-defined]
        effects = list(table.member.reduced(B, Reduced(STAGE, STEP, 1, 1, 3.0), digest(2)))
        [(_, message)] = sent(effects, Ready)
        [apply] = tasks(list(table.member.committed(1, message.digest)))  # type: ignore[attr-defined]
        assert isinstance(apply, ApplyTask)
        assert apply.reduced == (None, PayloadKey(STEP, "reduced", 1, 1, B))
        assert apply.sq_norms == (0.0, 3.0)


class TestTheLedger:
    """The accumulator holds exactly what the plan counts for us, or nothing is contributed."""

    @pytest.mark.parametrize("counted", [{8, 9, 10}, {10}, {8}])
    def test_a_plan_that_does_not_fit_waits(self, counted: set[int]) -> None:
        table = Table(8, 9)
        effects = list(table.member.plan(LEADER, plan({ME: counted, B: IDS - counted})))
        assert tasks(effects) == []
        assert table.member.progress is Progress.DRAINING

    def test_it_waits_for_the_worker(self) -> None:
        table = Table(8)
        table.busy = True
        assert table.member.plan(LEADER, plan({ME: {8, 9}, B: {10, 11}})) == []
        table.busy = False
        assert table.member.advance() == []
        table.done.add(9)
        [task] = tasks(list(table.member.advance()))
        assert isinstance(task, ContributeTask)

    def test_doubles_are_subtracted_first(self) -> None:
        table = Table(8, 9, 10)
        order = plan({ME: {8, 9}, B: {10, 11}}, dropped={ME: {10}})
        doing = tasks(list(table.member.plan(LEADER, order)))
        assert doing == [SubtractTask(STEP, 10), ContributeTask(STEP, 1, tuple(order.bounds))]
        assert table.done == {8, 9}

    def test_a_double_that_never_came_needs_no_subtraction(self) -> None:
        table = Table(8, 9)
        order = plan({ME: {8, 9}, B: {10, 11}}, dropped={ME: {10}})
        [task] = tasks(list(table.member.plan(LEADER, order)))
        assert isinstance(task, ContributeTask)


class TestAttempts:
    def test_a_higher_attempt_starts_over(self) -> None:
        table, _, _ = ready()
        [task] = tasks(list(table.member.plan(C, plan({ME: {8, 9}, B: {10, 11}}, attempt=2))))
        assert task == ContributeTask(STEP, 2, (0, 256, SIZE))

    @pytest.mark.parametrize("attempt", [0, 3, 4])
    def test_no_attempt_is_followed_back(self, attempt: int) -> None:
        table, _ = exchanging(attempt=4)
        old = plan({ME: {8}, B: {9, 10, 11}}, attempt=attempt)
        assert table.member.plan(C, old) == []
        assert table.member.promised == 4

    def test_the_commit_of_an_attempt_given_up_is_not_applied(self) -> None:
        table, _, agreed = ready()
        table.member.plan(C, plan({ME: {8, 9}, B: {10, 11}}, attempt=2))
        assert table.member.committed(1, agreed) == []

    def test_outcomes_of_an_attempt_given_up_are_void(self) -> None:
        table, order = exchanging()
        table.member.plan(C, plan({ME: {8, 9}, B: {10, 11}}, attempt=2))
        old = ContributeTask(STEP, 1, tuple(order.bounds))
        assert table.member.contributed(old, Outcome()) == []
        assert table.member.was_reduced(ReduceTask(STEP, 1, 0, (), 256), Outcome()) == []

    def test_contributions_to_an_old_attempt_are_dropped(self) -> None:
        table, _ = exchanging(attempt=4)
        assert table.member.shard(B, Shard(STAGE, STEP, 3, 0)) == []
        assert table.member.reduced(B, Reduced(STAGE, STEP, 3, 1, 3.0), digest(2)) == []

    def test_parts_of_other_attempts_are_not_mixed(self) -> None:
        table, _ = exchanging(attempt=4)
        assert tasks(list(table.member.shard(B, Shard(STAGE, STEP, 5, 0)))) == []

    def test_nothing_is_followed_while_applying(self) -> None:
        table, _, agreed = ready()
        table.member.committed(1, agreed)
        assert table.member.plan(C, plan({ME: {8, 9}, B: {10, 11}}, attempt=9)) == []
        assert table.member.committed(1, agreed) == []

    def test_what_a_lost_peer_sent_early_is_not_its_next_process_s(self) -> None:
        table, _ = exchanging()
        table.member.shard(B, Shard(STAGE, STEP, 1, 0))
        assert kept(list(table.member.shard(B, Shard(STAGE, STEP, 2, 0))))
        table.member.forget(B)
        assert not kept(list(table.member.shard(B, Shard(STAGE, STEP, 1, 0)))), "of this attempt"
        assert kept(list(table.member.shard(B, Shard(STAGE, STEP, 2, 0)))), "said anew"

    def test_a_later_seat_of_ours_keeps_our_vow_in_that_step_alone(self) -> None:
        """What the earlier seat sent for that attempt may still arrive as if it were ours."""
        table, _ = exchanging(attempt=3)
        assert table.member.vow == (STEP, 3)
        later = Table(8, 9, vow=table.member.vow)
        assert later.member.plan(LEADER, plan({ME: {8, 9}, B: {10, 11}}, attempt=3)) == []
        assert tasks(list(later.member.plan(LEADER, plan({ME: {8, 9}, B: {10, 11}}, attempt=4))))
        later.member.start_step(STEP + 1)
        assert later.member.promised == 0


class TestCommits:
    def test_who_knows_the_commit_takes_part_in_no_other_attempt(self) -> None:
        """Not even when it cannot apply it: somebody may have applied it."""
        table, order = exchanging()
        agreed = plan_digest(LEADER, order, [digest(1), digest(2)], [2.0, 3.0])
        assert table.member.committed(1, agreed) == []
        assert table.member.plan(C, plan({ME: {8, 9}, C: {10, 11}}, attempt=2)) == []
        assert table.member.promised == 1

    def test_the_plan_of_a_commit_that_came_first_is_followed(self) -> None:
        table, _ = exchanging()
        table.member.committed(2, digest(9))
        [task] = tasks(list(table.member.plan(LEADER, plan({ME: {8, 9}, B: {10, 11}}, attempt=2))))
        assert isinstance(task, ContributeTask)

    def test_a_commit_may_come_before_the_last_shard(self) -> None:
        """A sibling's heartbeat may be faster than our own link to an owner."""
        _, _, agreed = ready()
        late, _ = exchanging()
        [reduce] = tasks(list(late.member.shard(B, Shard(STAGE, STEP, 1, 0))))
        assert isinstance(reduce, ReduceTask)
        late.member.was_reduced(reduce, Outcome(sq_norm=2.0, digests=(digest(1),)))
        assert late.member.committed(1, agreed) == []
        effects = list(late.member.reduced(B, Reduced(STAGE, STEP, 1, 1, 3.0), digest(2)))
        [task] = tasks(effects)
        assert isinstance(task, ApplyTask)

    @pytest.mark.parametrize("change", [lambda d: digest(7), lambda d: d[::-1]])
    def test_a_commit_of_other_bytes_is_not_applied(self, change: Callable[[bytes], bytes]) -> None:
        table, _, agreed = ready()
        [effect] = table.member.committed(1, change(agreed))
        assert isinstance(effect, Fault)
        assert effect.kind == "behind"

    def test_the_digest_covers_leader_plan_bytes_and_norms(self) -> None:
        order = plan({ME: {8, 9}, B: {10, 11}})
        base = plan_digest(LEADER, order, [digest(1), digest(2)], [2.0, 3.0])
        others = {
            plan_digest(C, order, [digest(1), digest(2)], [2.0, 3.0]),
            plan_digest(LEADER, plan({ME: {8}, B: {9}}, attempt=2), [digest(1)] * 2, [2.0, 3.0]),
            plan_digest(LEADER, order, [digest(2), digest(1)], [2.0, 3.0]),
            plan_digest(LEADER, order, [digest(1), digest(2)], [3.0, 2.0]),
        }
        assert len(others | {base}) == 5


class TestObservers:
    def observer(self) -> tuple[Table, bytes]:
        """Not loaded yet; plan and broadcasts are here."""
        table = Table(loaded=False)
        order = plan({B: {8, 9}, C: {10, 11}}, observers=[ME])
        assert table.member.plan(LEADER, order) == []
        table.member.reduced(B, Reduced(STAGE, STEP, 1, 0, 2.0), digest(1))
        effects = list(table.member.reduced(C, Reduced(STAGE, STEP, 1, 1, 3.0), digest(2)))
        assert not sent(effects, Ready)
        return table, plan_digest(LEADER, order, [digest(1), digest(2)], [2.0, 3.0])

    def test_it_applies_the_broadcasts_once_loaded(self) -> None:
        table, agreed = self.observer()
        assert table.member.committed(1, agreed) == []
        table.loaded = True
        [task] = tasks(list(table.member.try_apply()))
        assert isinstance(task, ApplyTask)

    def test_it_applies_nothing_uncommitted(self) -> None:
        table, _ = self.observer()
        table.loaded = True
        assert table.member.try_apply() == []


class TestFailures:
    def test_a_poisoned_gradient_stops_the_seat(self) -> None:
        table = Table(8, 9)
        [task] = tasks(list(table.member.plan(LEADER, plan({ME: {8, 9}, B: {10, 11}}))))
        assert isinstance(task, ContributeTask)
        [fault] = table.member.contributed(task, Outcome(error="poisoned"))
        assert isinstance(fault, Fault)
        assert fault.kind == "poisoned"

    def test_a_malformed_contribution_is_refused_and_its_sender_blamed(self) -> None:
        table, _ = exchanging()
        [reduce] = tasks(list(table.member.shard(B, Shard(STAGE, STEP, 1, 0))))
        assert isinstance(reduce, ReduceTask)
        effects = list(table.member.was_reduced(reduce, Outcome(error="codec", part=0)))
        assert not sent(effects, Reduced)
        [(to, refusal)] = sent(effects, Ready)
        assert to == LEADER
        assert refusal == Ready(STAGE, STEP, 1, REFUSED, 0.0)
        assert blamed(effects) == [(B, "malformed-shard")]
        assert not table.member.ready
