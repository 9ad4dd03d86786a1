"""Plans, shards and broadcasts that a member of a round must not believe."""

from __future__ import annotations

import pytest

from protocol.ids import PeerId
from protocol.pipeline.effects import (
    ApplyTask,
    Outcome,
)
from protocol.rounds.inbox import EARLY_ATTEMPTS
from protocol.rounds.shards import ENOUGH
from protocol.wire.messages import Plan, Ready, Reduced, Segment
from protocol.wire.parts import PlanMember
from tests.support.round_members import (
    IDS,
    LEADER,
    ME,
    SIZE,
    STAGE,
    STEP,
    STRANGER,
    B,
    C,
    Table,
    bitmap,
    blamed,
    decoded,
    digest,
    exchanging,
    kept,
    plan,
    ready,
    sent,
    tasks,
)


class TestHostile:
    @pytest.mark.parametrize(
        "bounds",
        [[0, SIZE], [0, 100, SIZE], [0, 256, SIZE + 1], [0, 256, 256, SIZE], [256, 256, SIZE]],
    )
    def test_wrong_bounds(self, bounds: list[int]) -> None:
        table = Table(8, 9)
        order = plan({ME: {8, 9}, B: {10, 11}}, bounds=bounds)
        assert blamed(table.member.plan(C, order)) == [(C, "plan-with-wrong-bounds")]
        assert table.member.promised == 0

    @pytest.mark.parametrize(
        "counted",
        [
            {ME: b"\xff"},  # ids beyond the step
            {ME: bitmap({8, 9}), B: bitmap({10})},  # one for nobody
            {ME: bitmap({8, 9}), B: bitmap({9, 10, 11})},  # one for two
            {ME: bitmap({8, 9}), B: bitmap({9, 10})},  # both, as many as there should be
            {ME: b"", B: b""},
        ],
    )
    def test_a_plan_that_does_not_count_every_id_once(self, counted: dict[PeerId, bytes]) -> None:
        """We take out the microbatches that it counts for others: nobody would count those it
        leaves out."""
        members = [PlanMember(peer, bits) for peer, bits in counted.items()]
        bounds = [0, SIZE] if len(members) == 1 else [0, 256, SIZE]
        order = Plan(STAGE, STEP, 1, members, bounds, [])
        table = Table(8, 9)
        assert blamed(table.member.plan(C, order)) == [(C, "plan-that-miscounts")]
        assert table.member.promised == 0

    def test_a_plan_without_us(self) -> None:
        table = Table(8)
        assert table.member.plan(C, plan({B: set(IDS)})) == []
        assert table.member.promised == 0

    @pytest.mark.parametrize(("sender", "shard"), [(STRANGER, 1), (B, 0), (C, 1), (B, 31)])
    def test_a_reduced_shard_of_an_impostor(self, sender: PeerId, shard: int) -> None:
        table, _ = exchanging()
        effects = table.member.reduced(sender, Reduced(STAGE, STEP, 1, shard, 3.0), digest(9))
        assert blamed(effects) == [(sender, "reduced-shard-of-another")]
        assert kept(effects) == []

    def test_an_impostor_before_the_plan_replaces_nothing(self) -> None:
        """We cannot know the shard's owner yet: both are kept, each under its sender."""
        table = Table(8, 9)
        message = Reduced(STAGE, STEP, 1, 1, 3.0)
        first = kept(table.member.reduced(C, message, digest(9)))
        second = kept(table.member.reduced(B, message, digest(2)))
        third = kept(table.member.reduced(STRANGER, message, digest(8)))
        assert len({*first, *second, *third}) == 3
        effects = table.member.plan(LEADER, plan({ME: {8, 9}, B: {10, 11}}))
        expected = {(C, "reduced-shard-of-another"), (STRANGER, "reduced-shard-of-another")}
        assert set(blamed(effects)) == expected
        [task] = tasks(effects)
        decoded(table.member, table.member.computed(task, Outcome()))
        [reduce] = tasks(table.member.segment(B, Segment(STAGE, STEP, 1, 0)))
        done = table.member.computed(reduce, Outcome(sq_norm=2.0, digests=(digest(1),)))
        assert len(sent(done, Ready)) == 1
        [apply] = tasks(table.member.committed(1, table.member.ready))
        assert apply.reduced[1] == second[0]

    def test_a_second_broadcast_of_the_owner_changes_nothing(self) -> None:
        table, _, agreed = ready()
        again = table.member.reduced(B, Reduced(STAGE, STEP, 1, 1, 4.0), digest(7))
        assert again == []
        [task] = tasks(table.member.committed(1, agreed))
        assert isinstance(task, ApplyTask)

    MAX_EARLY = EARLY_ATTEMPTS * ENOUGH

    def test_one_flood_does_not_drown_another_peer(self) -> None:
        table = Table(8, 9)
        for attempt in range(100):
            shards = table.member.segment(C, Segment(STAGE, STEP, attempt, 0))
            sums = table.member.reduced(C, Reduced(STAGE, STEP, attempt, 0, 1.0), digest(1))
            assert bool(kept(shards)) == bool(kept(sums)) == (attempt < self.MAX_EARLY)
            assert bool(blamed(shards)) == bool(blamed(sums)) == (attempt >= self.MAX_EARLY)
        assert kept(table.member.segment(B, Segment(STAGE, STEP, 1, 0)))
        assert kept(table.member.reduced(B, Reduced(STAGE, STEP, 1, 1, 1.0), digest(1)))

    def test_many_honest_attempts_are_no_flood(self) -> None:
        table = Table(8, 9)
        for attempt in range(1, 5 * self.MAX_EARLY):
            order = plan({ME: {8, 9}, B: {10, 11}}, attempt=attempt)
            table.member.plan(LEADER, order)
            assert kept(table.member.segment(B, Segment(STAGE, STEP, attempt, 0)))
            effects = table.member.reduced(B, Reduced(STAGE, STEP, attempt, 1, 1.0), digest(1))
            assert kept(list(effects))

    @pytest.mark.parametrize("step", [STEP - 1, STEP + 1])
    def test_another_step(self, step: int) -> None:
        table = Table(8, 9)
        assert table.member.segment(B, Segment(STAGE, step, 1, 0)) == []
        assert table.member.reduced(B, Reduced(STAGE, step, 1, 0, 1.0), digest(1)) == []
