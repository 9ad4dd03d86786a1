"""What the stage before has used of a step: how it is told, and what a plan may count by it."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.effects import Penalise, Send
from protocol.ids import PeerId
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.place import Place
from protocol.seat.returned import REPEAT_S, STEPS, TELL_S, Confirmed, Telling
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Plan, PlanMember, Returned
from tests.support.protocol_examples import peer

ME, SIBLING, BEFORE, OTHER, THIRD = (peer(n) for n in range(1, 6))
PER_STEP, STEP = 4, 3


def ids(*of: int, step: int = STEP) -> bytes:
    return to_bitmap((step * PER_STEP + one for one in of), step, PER_STEP)


def returned(*of: int, step: int = STEP) -> Returned:
    return Returned(1, step, ids(*of, step=step))


def plan(*theirs: int, ours: Iterable[int] = ()) -> Plan:
    members = [PlanMember(SIBLING, ids(*theirs)), PlanMember(ME, ids(*ours))]
    return Plan(1, STEP, 1, members, [0, 1, 2], [])


def confirmed(*before: Replica, stage: int = 1) -> Confirmed:
    made = Confirmed(Place(ME, stage, 3, PER_STEP), STEP)
    made.update_view(
        SwarmView.of([before, [Replica(ME, STEP, True)], [Replica(THIRD, STEP, True)]])
    )
    return made


HERE = Replica(BEFORE, STEP, True)


class TestConfirmed:
    def test_a_plan_counts_no_more_of_others_than_was_returned(self) -> None:
        made = confirmed(HERE)
        assert made.returned(BEFORE, returned(0, 1)) == []
        assert made.covers(plan(0, 1, ours=[2, 3])), "what we have made ourselves is returned"
        refused = made.covers(plan(0, 1, 2, 3))
        assert refused.reason == "the stage before has not got 2 gradients that a plan counts"
        made.returned(OTHER, returned(2, 3))
        assert made.covers(plan(0, 1, 2, 3))

    def test_a_step_is_whole_once_all_of_it_was_returned(self) -> None:
        made = confirmed(HERE)
        assert not made.whole()
        made.returned(BEFORE, returned(0, 1, 2))
        assert not made.whole()
        made.returned(BEFORE, returned(3))
        assert made.whole()

    def test_a_step_that_most_before_have_closed_is_whole(self) -> None:
        past = [Replica(one, STEP + 1, True) for one in (BEFORE, OTHER)]
        assert not confirmed(past[0], Replica(OTHER, STEP, True)).whole(), "half are not most"
        made = confirmed(*past, Replica(THIRD, STEP, True))
        assert made.whole()
        assert made.covers(plan(0, 1, 2, 3))

    def test_nobody_to_wait_for(self) -> None:
        assert confirmed().whole()
        assert confirmed(HERE, stage=0).whole(), "the first stage has none before it"

    def test_what_came_early_counts_and_what_is_past_does_not(self) -> None:
        made = confirmed(HERE)
        made.returned(BEFORE, returned(0, 1, 2, 3))
        made.returned(BEFORE, returned(0, 1, 2, 3, step=STEP + STEPS - 1))
        made.returned(BEFORE, returned(0, 1, 2, 3, step=STEP + STEPS))
        assert made.whole()
        for step, whole in ((1, False), (STEPS - 1, True), (STEPS, False), (0, False)):
            made.start_step(STEP + step)
            assert made.whole() is whole, step

    def test_who_names_microbatches_of_no_step_is_penalised(self) -> None:
        made = confirmed(HERE)
        [penalty] = made.returned(BEFORE, Returned(1, STEP, b"\xff"))
        assert isinstance(penalty, Penalise)
        assert (penalty.peer, penalty.reason) == (BEFORE, "ledger-out-of-range")
        assert not made.whole()


def telling(stage: int = 0) -> Telling:
    return Telling(Place(ME, stage, 2, PER_STEP))


def after(*versions: int) -> SwarmView:
    """The replicas of the next stage."""
    next_ones = [
        Replica(peer, at, True) for peer, at in zip((SIBLING, OTHER), versions, strict=False)
    ]
    return SwarmView.of([[Replica(ME, STEP, True)], next_ones])


def told(effects: list[Send]) -> list[tuple[PeerId, int, bytes]]:
    assert all(isinstance(effect.message, Returned) for effect in effects)
    return [(e.peer, e.message.step, e.message.ids) for e in effects]  # type: ignore[union-attr]


class TestTelling:
    def test_each_replica_after_us_is_told_at_once_where_no_more_comes(self) -> None:
        made, to = telling(), after(STEP, STEP)
        now = {STEP: ids(0)}
        sent = made.tell(to, now, idle=True, now=0.0)
        assert sorted(told(sent)) == sorted((p, STEP, ids(0)) for p in (SIBLING, OTHER))
        assert sent[0].message.stage == 1  # type: ignore[union-attr]
        assert made.tell(to, now, idle=True, now=REPEAT_S - 0.1) == []
        assert made.due == REPEAT_S
        assert len(made.tell(to, now, idle=True, now=REPEAT_S)) == 2, "it may have been lost"
        assert made.due == 2 * REPEAT_S

    def test_while_more_is_to_come_reports_are_few(self) -> None:
        made, to = telling(), after(STEP)
        assert told(made.tell(to, {STEP: ids(0)}, idle=False, now=0.0)) == [(SIBLING, STEP, ids(0))]
        assert made.tell(to, {STEP: ids(0, 1)}, idle=False, now=TELL_S / 2) == []
        assert made.due == TELL_S
        both = ids(0, 1)
        assert told(made.tell(to, {STEP: both}, idle=False, now=TELL_S)) == [(SIBLING, STEP, both)]

    def test_the_step_before_is_told_at_once(self) -> None:
        made, to = telling(), after(STEP - 1)
        old, new = ids(0, step=STEP - 1), ids(0)
        made.tell(to, {STEP - 1: old, STEP: new}, idle=False, now=0.0)
        old, new = ids(0, 1, step=STEP - 1), ids(0, 1)
        sent = made.tell(to, {STEP - 1: old, STEP: new}, idle=False, now=0.1)
        assert told(sent) == [(SIBLING, STEP - 1, old)]
        assert made.due == TELL_S, "the sooner of the two"

    def test_who_has_closed_a_step_is_not_told_of_it(self) -> None:
        assert telling().tell(after(STEP + 1), {STEP: ids(0)}, idle=True, now=0.0) == []

    def test_nothing_to_tell(self) -> None:
        made = telling()
        assert made.tell(after(STEP), {STEP: ids()}, idle=True, now=0.0) == []
        assert made.due is None
        last = telling(stage=1)
        assert last.tell(after(STEP), {STEP: ids(0)}, idle=True, now=0.0) == []
