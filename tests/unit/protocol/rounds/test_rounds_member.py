"""A member of a round: contributes exactly what the plan counts, applies what is committed."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from protocol.effects import Explain
from protocol.ids import PeerId, peer_id_from_key
from protocol.pipeline.effects import (
    ApplyTask,
    Compute,
    ContributeTask,
    DecodeTask,
    Fault,
    Keep,
    KeepVersionTask,
    Outcome,
    PassTask,
    PayloadKey,
    ReduceTask,
)
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.place import Place
from protocol.rounds.inbox import EARLY_ATTEMPTS
from protocol.rounds.member import Progress, RoundMember
from protocol.rounds.plans import Broadcast, plan_digest
from protocol.rounds.shards import ENOUGH
from protocol.wire.messages import Plan, Ready, Reduced, Segment
from protocol.wire.parts import Decree, PlanMember
from tests.support.effects import blamed, sent, tasks
from tests.support.rounds import Summed, member_of

ME, B, C, STRANGER = (peer_id_from_key(bytes([n]) * 32) for n in range(4))
STEP, PER_STEP, SIZE, STAGE = 2, 4, 512, 1
IDS = frozenset(range(8, 12))
LEADER = B


class Table:
    """A member with the ledger and the worker's state that a test gives it."""

    def __init__(self, *done: int, loaded: bool = True, promise: tuple[int, int] = (0, 0)) -> None:
        self.worker = Summed(set(done))
        place = Place(ME, STAGE, 2, PER_STEP)
        self.member = member_of(
            place, SIZE, STEP, summed=self.worker, loaded=loaded, promise=promise
        )


def bitmap(ids: object) -> bytes:
    return to_bitmap(ids, STEP, PER_STEP)


def plan(
    counted: dict[PeerId, set[int]] | None = None,
    *,
    attempt: int = 1,
    bounds: list[int] | None = None,
    observers: list[PeerId] | None = None,
) -> Plan:
    halves = {ME: {8, 9}, B: {10, 11}}
    members = [PlanMember(peer, bitmap(ids)) for peer, ids in (counted or halves).items()]
    cuts = [SIZE * i // len(members) // 128 * 128 for i in range(len(members))]
    return Plan(STAGE, STEP, attempt, members, bounds or [*cuts, SIZE], list[str](observers or []))


def kept(effects: list[object]) -> list[PayloadKey]:
    return [key for effect in effects if isinstance(effect, Keep) for key in effect.keys]


def decoded(member: RoundMember, effects: list[object]) -> list[object]:
    """These effects, and those of having decoded the sums that they ask to be."""
    wanted = [task for task in tasks(effects) if isinstance(task, DecodeTask)]
    later = [effect for task in wanted for effect in member.computed(task, Outcome())]
    rest = [e for e in effects if not isinstance(e, Compute) or e.task not in wanted]
    return [*rest, *later]


def digest(n: int) -> bytes:
    return bytes([n]) * 32


def decree(value: bytes) -> Decree:
    """That of the first attempt."""
    return Decree(1, value, (), (), 0.0)


def exchanging(attempt: int = 1) -> tuple[Table, Plan]:
    """Two members, ours the first shard; our contribution is encoded."""
    table = Table(8, 9)
    order = plan(attempt=attempt)
    [task] = tasks(table.member.plan(LEADER, order))
    effects = table.member.computed(task, Outcome())
    assert [to for to, _ in sent(effects, Segment)] == [B]
    return table, order


def summing() -> tuple[Table, ReduceTask]:
    """As ``exchanging``, with the other contribution to our shard."""
    table, _ = exchanging()
    [reduce] = tasks(table.member.take(B, Segment(STAGE, STEP, 1, 0), b""))
    return table, reduce


def ready() -> tuple[Table, Plan, bytes]:
    """As ``exchanging``, with both shards reduced."""
    table, reduce = summing()
    table.member.computed(reduce, Outcome(sq_norm=2.0, digests=(digest(1),)))
    effects = table.member.take(B, Reduced(STAGE, STEP, 1, 1, 3.0), digest(2))
    [(to, message)] = sent(decoded(table.member, list(effects)), Ready)
    assert to == LEADER
    assert message.loss_sum == 8 + 9
    return table, plan(), table.member.ready


BROADCASTS = [Broadcast(digest(1), 2.0), Broadcast(digest(2), 3.0)]


class TestTheUsualRound:
    def test_parts_are_summed_in_the_members_order(self) -> None:
        table = Table(8)
        order = plan({B: {9}, C: {10, 11}, ME: {8}})
        [task] = tasks(table.member.plan(LEADER, order))
        table.member.computed(task, Outcome())
        table.member.take(C, Segment(STAGE, STEP, 1, 2), b"")
        [reduce] = tasks(table.member.take(B, Segment(STAGE, STEP, 1, 2), b""))
        assert [key.peer for key in reduce.parts] == [B, C, ME]
        assert reduce.microbatches == (1, 2, 1)

    def test_alone_with_an_observer_it_broadcasts(self) -> None:
        table = Table(*IDS)
        [task] = tasks(table.member.plan(LEADER, plan({ME: set(IDS)}, observers=[C])))
        [reduce] = tasks(table.member.computed(task, Outcome()))
        effects = table.member.computed(reduce, Outcome(digests=(digest(1),)))
        assert [to for to, _ in sent(effects, Reduced)] == [C]

    def test_messages_may_overtake_the_plan(self) -> None:
        table = Table(8, 9)
        assert kept(table.member.take(B, Segment(STAGE, STEP, 1, 0), b""))
        assert kept(table.member.take(B, Reduced(STAGE, STEP, 1, 1, 3.0), digest(2)))
        [task] = tasks(table.member.plan(LEADER, plan()))
        [reduce] = tasks(decoded(table.member, table.member.computed(task, Outcome())))
        table.member.computed(reduce, Outcome(digests=(digest(1),)))
        assert table.member.ready

    def test_a_shard_without_elements_is_nobodys_work(self) -> None:
        table = Table(8, 9)
        order = plan(bounds=[0, 0, SIZE])
        [task] = tasks(table.member.plan(LEADER, order))
        effects = table.member.computed(task, Outcome())
        assert [m.segment for _, m in sent(effects, Segment)] == [1]
        effects = table.member.take(B, Reduced(STAGE, STEP, 1, 1, 3.0), digest(2))
        assert len(sent(decoded(table.member, list(effects)), Ready)) == 1
        [apply] = tasks(table.member.committed(decree(table.member.ready)))
        assert apply.reduced == (None, PayloadKey(STEP, "reduced", 1, 1, B))
        assert apply.sq_norms == (0.0, 3.0)

    def test_everybodys_first_one_is_sent_before_anybodys_second(self) -> None:
        table = Table(8)
        order = plan({B: {9}, ME: {8}, C: {10, 11}}, bounds=[0, 0, 128, 128, 256, 256, 512])
        [task] = tasks(table.member.plan(LEADER, order))
        said = sent(table.member.computed(task, Outcome()), Segment)
        # C comes after us in the plan; segments 0, 2 and 4 have no elements
        assert [(to, m.segment) for to, m in said] == [(C, 5), (B, 1)]


class TestTheLedger:
    """The accumulator holds exactly what the plan counts for us, or nothing is contributed."""

    @pytest.mark.parametrize("counted", [{8, 9, 10}, {10}])
    def test_a_plan_that_does_not_fit_waits(self, counted: set[int]) -> None:
        table = Table(8, 9)
        effects = table.member.plan(LEADER, plan({ME: counted, B: IDS - counted}))
        assert tasks(effects) == []
        assert table.member.progress is Progress.SETTLING

    def test_doubles_are_subtracted_first(self) -> None:
        """The leader could not know of this one: the worker was at it."""
        table = Table(8, 9)
        table.worker.accumulating = True
        order = plan()
        assert table.member.plan(LEADER, order) == []
        table.worker.ids.add(10)
        table.worker.accumulating = False
        doing = tasks(table.member.advance())
        assert doing == [PassTask(STEP, 10, "less"), ContributeTask(STEP, 1, tuple(order.bounds))]
        assert table.worker.ids == {8, 9}


class TestAttempts:
    @pytest.mark.parametrize("attempt", [0, 3, 4])
    def test_no_attempt_is_followed_back(self, attempt: int) -> None:
        table, _ = exchanging(attempt=4)
        old = plan({ME: {8}, B: {9, 10, 11}}, attempt=attempt)
        assert table.member.plan(C, old) == []
        assert table.member.promised == 4

    def test_outcomes_of_an_attempt_given_up_are_void(self) -> None:
        table, order = exchanging()
        table.member.plan(C, plan(attempt=2))
        old = ContributeTask(STEP, 1, tuple(order.bounds))
        assert table.member.computed(old, Outcome()) == []
        assert table.member.computed(ReduceTask(STEP, 1, 0, (), ()), Outcome()) == []

    def test_contributions_to_another_attempt_are_dropped_or_not_mixed(self) -> None:
        table, _ = exchanging(attempt=4)
        for step, attempt in ((STEP, 3), (STEP - 1, 4), (STEP + 1, 4)):
            assert table.member.take(B, Segment(STAGE, step, attempt, 0), b"") == []
            assert table.member.take(B, Reduced(STAGE, step, attempt, 1, 3.0), digest(2)) == []
        assert tasks(table.member.take(B, Segment(STAGE, STEP, 5, 0), b"")) == []

    def test_a_later_seat_of_ours_keeps_our_promise_in_that_step_alone(self) -> None:
        """Messages of the earlier seat for that attempt may still arrive as if they were ours."""
        table, _ = exchanging(attempt=3)
        assert table.member.promise == (STEP, 3)
        later = Table(8, 9, promise=table.member.promise)
        assert later.member.plan(LEADER, plan(attempt=3)) == []
        assert tasks(later.member.plan(LEADER, plan(attempt=4)))
        later.member.start_step(STEP + 1)
        assert later.member.promised == 0


class TestCommits:
    def test_who_knows_the_commit_takes_part_in_no_other_attempt(self) -> None:
        """Not even when it cannot apply it: somebody may have applied it."""
        table, order = exchanging()
        agreed = plan_digest(LEADER, order, BROADCASTS)
        assert table.member.committed(decree(agreed)) == []
        assert table.member.plan(C, plan({ME: {8, 9}, C: {10, 11}}, attempt=2)) == []
        assert table.member.promised == 1

    def test_who_does_not_hold_what_is_committed_is_left_out(self) -> None:
        table, _, agreed = ready()
        assert not table.member.is_left_out
        table.member.plan(C, plan(attempt=2))
        table.member.committed(decree(agreed))
        assert table.member.is_left_out, "it has begun another attempt"
        for other in (Table(8, 9), exchanging()[0]):
            other.member.committed(decree(agreed))
            assert other.member.is_left_out, "it was closed without it"
        whole, _, agreed = ready()
        whole.member.committed(decree(agreed))
        assert not whole.member.is_left_out

    @pytest.mark.parametrize("change", [lambda d: digest(7), lambda d: d[::-1]])
    def test_a_commit_of_other_bytes_is_not_applied(self, change: Callable[[bytes], bytes]) -> None:
        table, _, agreed = ready()
        [effect] = table.member.committed(decree(change(agreed)))
        assert effect.kind == "behind"

    def test_the_digest_covers_leader_plan_bytes_and_norms(self) -> None:
        order = plan()
        base = plan_digest(LEADER, order, BROADCASTS)
        others = {
            plan_digest(C, order, BROADCASTS),
            plan_digest(LEADER, plan({ME: {8}, B: {9}}, attempt=2), BROADCASTS),
            plan_digest(LEADER, order, [Broadcast(digest(2), 2.0), Broadcast(digest(1), 3.0)]),
            plan_digest(LEADER, order, [Broadcast(digest(1), 3.0), Broadcast(digest(2), 2.0)]),
            plan_digest(LEADER, order, BROADCASTS, beside=b"what all have committed to"),
        }
        assert len(others | {base}) == 6


class TestObservers:
    def observer(self) -> tuple[Table, bytes]:
        """Not loaded yet; plan and broadcasts are here. It says nothing: it does not influence
        whether the round is repeated."""
        table = Table(loaded=False)
        order = plan({B: {8, 9}, C: {10, 11}}, observers=[ME])
        assert table.member.plan(LEADER, order) == []
        effects = [
            *table.member.take(B, Reduced(STAGE, STEP, 1, 0, 2.0), digest(1)),
            *table.member.take(C, Reduced(STAGE, STEP, 1, 1, 3.0), digest(2)),
        ]
        assert not tasks(effects)
        assert not sent(effects, Ready)
        return table, plan_digest(LEADER, order, BROADCASTS)

    def test_it_applies_the_broadcasts_once_loaded(self) -> None:
        table, agreed = self.observer()
        assert table.member.committed(decree(agreed)) == []
        table.member.loaded = True
        [task] = tasks(table.member.try_apply())
        assert isinstance(task, ApplyTask)

    def test_a_commit_may_come_before_the_last_sum(self) -> None:
        """Its leader's link may be faster than that of an owner."""
        table = Table()
        order = plan({B: {8, 9}, C: {10, 11}}, observers=[ME])
        table.member.plan(LEADER, order)
        table.member.take(B, Reduced(STAGE, STEP, 1, 0, 2.0), digest(1))
        assert table.member.committed(decree(plan_digest(LEADER, order, BROADCASTS))) == []
        assert not table.member.is_left_out
        effects = table.member.take(C, Reduced(STAGE, STEP, 1, 1, 3.0), digest(2))
        [task] = tasks(decoded(table.member, list(effects)))
        assert isinstance(task, ApplyTask)

    def test_named_as_a_member_it_contributes_nothing_before_it_is_loaded(self) -> None:
        """The leader still knew the seat before this one. The worker has no version to add to
        (chaos seed 8 with a liar)."""
        table = Table(loaded=False)
        assert tasks(table.member.plan(LEADER, plan({ME: set(), B: {8, 9, 10, 11}}))) == []
        [task] = tasks(table.member.state_loaded())
        assert isinstance(task, ContributeTask)


class TestFailures:
    def test_a_poisoned_gradient_stops_the_seat(self) -> None:
        table = Table(8, 9)
        [task] = tasks(table.member.plan(LEADER, plan()))
        [fault] = table.member.computed(task, Outcome(error="poisoned"))
        assert fault.kind == "poisoned"

    def test_short_memory_is_no_divergence_and_is_tried_once_more(self) -> None:
        table = Table(8, 9)
        [task] = tasks(table.member.plan(LEADER, plan()))
        [again] = table.member.computed(task, Outcome(error="oom"))
        assert again == Compute(task)
        [fault] = table.member.computed(task, Outcome(error="oom"))
        assert fault.kind == "internal"
        [other] = table.member.computed(task, Outcome(error="stale"))
        assert other.kind == "internal"

    @pytest.mark.parametrize("error", ["oom", "gone", "internal"])
    def test_trouble_of_its_own_stops_the_seat_and_not_the_round(self, error: str) -> None:
        table, reduce = summing()
        [decode] = tasks(table.member.take(B, Reduced(STAGE, STEP, 1, 1, 3.0), digest(2)))
        for task in (reduce, decode):
            [fault] = table.member.computed(task, Outcome(error=error))
            assert fault.kind == "internal"

    def test_of_a_contribution_that_counts_for_nothing_people_hear(self) -> None:
        """Once. It is one word against another whose fault that is, so nobody is blamed."""
        table, reduce = summing()
        [place] = [i for i, key in enumerate(reduce.parts) if key.peer == B]
        outcome = Outcome(digests=(digest(1),), parts=(place,))
        effects = table.member.computed(reduce, outcome)
        assert [effect.members for effect in effects if isinstance(effect, Explain)] == [(B,)]
        assert sent(effects, Reduced)
        assert not blamed(effects)
        assert not table.member.spoilers
        table.member.start_step(STEP)
        [task] = tasks(table.member.plan(LEADER, plan(attempt=2)))
        table.member.computed(task, Outcome())
        [reduce] = tasks(table.member.take(B, Segment(STAGE, STEP, 2, 0), b""))
        effects = table.member.computed(reduce, outcome)
        assert sent(effects, Reduced)
        assert not any(isinstance(effect, Explain) for effect in effects)

    def test_nobody_but_the_spoiler_is_waited_for_in_a_spoilt_attempt(self) -> None:
        """Others may have refused it as well: they are not to blame for what they withhold."""
        table, _ = summing()
        assert table.member.awaited((), LEADER) == [("sum", B)]
        assert table.member.awaited({ME}, C) == [("plan", C)]
        assert table.member.awaited({B}, C) == [("sum", B), ("plan", C)], "so all hear of it"
        [decode] = tasks(table.member.take(B, Reduced(STAGE, STEP, 1, 1, 3.0), digest(2)))
        table.member.computed(decode, Outcome(error="codec", part=0))
        assert table.member.awaited((), LEADER) == [("spoilt", B)]
        table.member.plan(LEADER, plan(attempt=2))
        assert table.member.awaited((), ME) == [("spoilt", B)], "to the end of the step"


def test_a_leader_that_plans_anew_owes_the_commit_still_unless_one_is_lost() -> None:
    table, *_ = ready()
    for attempt, counted in ((2, {ME: {8, 9}, C: {10, 11}}), (3, {ME: {8, 9}, B: {10, 11}})):
        table.member.plan(LEADER, plan(counted, attempt=attempt))
        assert ("commit", LEADER) in table.member.awaited((), LEADER)
    table.member.lost_one()
    assert ("commit", LEADER) not in table.member.awaited((), LEADER)
    other, *_ = ready()
    other.member.lost_one()
    assert ("commit", LEADER) in other.member.awaited((), LEADER), "it is Ready now"


def test_an_attempt_that_may_be_decreed_stays_whoever_is_expelled() -> None:
    """A leader may have decided it: another one would be a second version."""
    table, _, agreed = ready()
    assert not table.member.expelled(B)
    assert table.member.ready == agreed
    table, order = exchanging()
    assert not table.member.expelled(C), "it is no member"
    table.member.committed(decree(digest(9)))
    assert not table.member.expelled(B)
    assert table.member.plan_followed == order


# --- sums are decoded before anybody relies on them --------------------------------------------


def test_a_malformed_sum_costs_an_attempt_and_its_owner_is_blamed() -> None:
    table, _ = exchanging()
    effects = table.member.take(B, Reduced(STAGE, STEP, 1, 1, 3.0), digest(2))
    [task] = tasks(effects)
    effects = table.member.computed(task, Outcome(error="codec", part=0))
    assert not sent(effects, Ready)
    assert blamed(effects) == [(B, "malformed-sum")]
    assert not any(isinstance(effect, Fault) for effect in effects)
    [again] = tasks(table.member.plan(C, plan(attempt=2)))
    assert isinstance(again, ContributeTask)


# --- a version whose hash is not known yet -----------------------------------------------------


STATE, OTHER = b"a" * 16, b"b" * 16


def hashing(*done: int) -> Table:
    table = Table(*done)
    table.member.start_step(STEP, hashing=True)
    return table


def test_it_contributes_once_the_hash_is_known() -> None:
    table = hashing(8, 9)
    order = replace(plan(), state=STATE)
    assert tasks(table.member.plan(LEADER, order)) == []
    assert tasks(table.member.advance()) == []
    assert table.member.awaited((), LEADER) == []  # we are the late one
    [task] = tasks(table.member.hashed(STATE))
    assert isinstance(task, ContributeTask)


def taken_by_three(*, hashed: bool) -> RoundMember:
    """A member whose state is another one than a plan of three members names."""
    made = hashing(8, 9).member
    order = replace(plan({ME: {8, 9}, B: {10}, C: {11}}), state=OTHER)
    if hashed:
        made.hashed(STATE)
        assert made.plan(LEADER, order) == []
    else:
        made.plan(LEADER, order)
        assert made.hashed(STATE) == []
    return made


@pytest.mark.parametrize("hashed", [False, True])
def test_it_leaves_if_most_of_its_siblings_have_another_state(hashed: bool) -> None:
    """They have, if they take part: a leader that only says so would have all give up theirs."""
    made = taken_by_three(hashed=hashed)
    assert made.plan_followed is None
    assert not [e for e in made.take(B, Segment(STAGE, STEP, 1, 0), b"") if isinstance(e, Fault)]
    [fault] = [e for e in made.take(C, Segment(STAGE, STEP, 1, 0), b"") if isinstance(e, Fault)]
    assert fault.kind == "differs"


def test_of_two_the_word_of_one_is_not_more_than_that_of_the_other() -> None:
    made = hashing(8, 9).member
    made.hashed(STATE)
    assert made.plan(LEADER, replace(plan(), state=OTHER)) == []
    assert not [e for e in made.take(B, Segment(STAGE, STEP, 1, 0), b"") if isinstance(e, Fault)]
    assert made.plan(LEADER, replace(plan(attempt=2), state=STATE))
    assert made.plan_followed is not None


def test_a_leader_that_plans_alone_is_not_most_of_those_that_made_the_version() -> None:
    worker = Summed({8, 9})
    made = member_of(
        Place(ME, STAGE, 2, PER_STEP), SIZE, STEP, summed=worker, roll=lambda: {ME, B, C}
    )
    made.start_step(STEP, STATE)
    alone = replace(plan({B: set(IDS), STRANGER: set()}), state=OTHER)
    assert made.plan(B, alone) == []
    for sender in (B, STRANGER):
        effects = made.take(sender, Segment(STAGE, STEP, 1, 0), b"")
        assert not [e for e in effects if isinstance(e, Fault)]


def test_a_version_stays_until_its_hash_is_known() -> None:
    table = hashing(*IDS)
    order = plan({ME: set(IDS)})
    agreed = plan_digest(LEADER, order, [])
    assert sent(table.member.plan(LEADER, order), Ready) == []
    assert tasks(table.member.committed(decree(agreed))) == []
    assert tasks(table.member.hashed(STATE)) == [ApplyTask(STEP)]


def test_a_version_is_kept_for_an_audit_before_it_is_replaced() -> None:
    keep, place, summed = KeepVersionTask(STEP), Place(ME, STAGE, 2, PER_STEP), Summed(set(IDS))
    made = member_of(place, SIZE, STEP, summed=summed, closing=lambda *_: [Compute(keep)])
    order = plan({ME: set(IDS)})
    made.plan(LEADER, order)
    agreed = plan_digest(LEADER, order, [])
    assert tasks(made.committed(decree(agreed))) == [keep, ApplyTask(STEP)]


# --- what must not be believed -----------------------------------------------------------------


class TestHostile:
    def test_wrong_bounds(self) -> None:
        table = Table(8, 9)
        order = plan(bounds=[0, 256, SIZE + 1])
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
        effects = table.member.take(sender, Reduced(STAGE, STEP, 1, shard, 3.0), digest(9))
        assert blamed(effects) == [(sender, "reduced-shard-of-another")]
        assert kept(effects) == []

    def test_an_impostor_before_the_plan_replaces_nothing(self) -> None:
        """We cannot know the shard's owner yet: both are kept, each under its sender."""
        table = Table(8, 9)
        message = Reduced(STAGE, STEP, 1, 1, 3.0)
        first = kept(table.member.take(C, message, digest(9)))
        second = kept(table.member.take(B, message, digest(2)))
        third = kept(table.member.take(STRANGER, message, digest(8)))
        assert len({*first, *second, *third}) == 3
        effects = table.member.plan(LEADER, plan())
        expected = {(C, "reduced-shard-of-another"), (STRANGER, "reduced-shard-of-another")}
        assert set(blamed(effects)) == expected
        [task] = tasks(effects)
        decoded(table.member, table.member.computed(task, Outcome()))
        [reduce] = tasks(table.member.take(B, Segment(STAGE, STEP, 1, 0), b""))
        done = table.member.computed(reduce, Outcome(sq_norm=2.0, digests=(digest(1),)))
        assert len(sent(done, Ready)) == 1
        [apply] = tasks(table.member.committed(decree(table.member.ready)))
        assert apply.reduced[1] == second[0]

    def test_a_second_broadcast_of_the_owner_changes_nothing(self) -> None:
        table, _, agreed = ready()
        again = table.member.take(B, Reduced(STAGE, STEP, 1, 1, 4.0), digest(7))
        assert again == []
        [task] = tasks(table.member.committed(decree(agreed)))
        assert isinstance(task, ApplyTask)

    MAX_EARLY = EARLY_ATTEMPTS * ENOUGH

    def test_one_flood_does_not_drown_another_peer(self) -> None:
        table = Table(8, 9)
        for attempt in range(100):
            shards = table.member.take(C, Segment(STAGE, STEP, attempt, 0), b"")
            sums = table.member.take(C, Reduced(STAGE, STEP, attempt, 0, 1.0), digest(1))
            assert bool(kept(shards)) == bool(kept(sums)) == (attempt < self.MAX_EARLY)
            assert bool(blamed(shards)) == bool(blamed(sums)) == (attempt >= self.MAX_EARLY)
        assert kept(table.member.take(B, Segment(STAGE, STEP, 1, 0), b""))
        assert kept(table.member.take(B, Reduced(STAGE, STEP, 1, 1, 1.0), digest(1)))

    def test_many_honest_attempts_are_no_flood(self) -> None:
        table = Table(8, 9)
        for attempt in range(1, 5 * self.MAX_EARLY):
            order = plan(attempt=attempt)
            table.member.plan(LEADER, order)
            assert kept(table.member.take(B, Segment(STAGE, STEP, attempt, 0), b""))
            effects = table.member.take(B, Reduced(STAGE, STEP, attempt, 1, 1.0), digest(1))
            assert kept(list(effects))
