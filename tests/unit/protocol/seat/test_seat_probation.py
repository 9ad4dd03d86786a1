"""Probation: replicas that nobody here has worked with count for little, and a crowd of them for
no more."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import structs

from protocol.ids import PeerId
from protocol.pace import ASIDE_S, FORGET_S
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.place import Place
from protocol.rounds.newcomers import NEW_AT_ONCE, Newcomers
from protocol.rounds.quorum import Quorum
from protocol.rounds.shards import segmented, shard_bounds
from protocol.seat.probation import AT_LEAST, MAX_FAILURES, Probation
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Admit, LedgerReport, Plan
from protocol.wire.parts import PlanMember
from tests.support.decrees import commit_of

ME, SIBLING, NEXT, NEW = map(PeerId, ("me", "sibling", "next", "new"))
CROWD = [PeerId(f"invented {n}") for n in range(50)]
PROVEN = {SIBLING, NEXT}


def view(
    ours: Collection[PeerId] = (ME, SIBLING),
    beside: Collection[PeerId] = (NEXT,),
    missing: Collection[PeerId] = (),
) -> SwarmView:
    def replica(peer: PeerId) -> Replica:
        says = tuple(missing) if peer in CROWD else ()
        return Replica(peer, 5, True, missing=says)

    return SwarmView.of([[replica(peer) for peer in ours], [replica(peer) for peer in beside]])


def names(seen: SwarmView, stage: int) -> set[PeerId]:
    return {replica.peer for replica in seen.serving(stage)}


def probation(*, settled: bool = True) -> Probation:
    place = Place(ME, 0, 2, 8)
    quorum = Quorum(ME, 0, None)
    if settled:
        quorum.settle([ME, SIBLING], [ME, SIBLING, NEXT], 5, 0.0)
    return Probation(place, quorum, PROVEN.__contains__)


def test_before_our_first_plan_everybody_counts_in_our_stage() -> None:
    seen = probation(settled=False).without(view([ME, *CROWD]), 0.0)
    assert names(seen, 0) == {ME, *CROWD}


def test_a_stage_in_which_nobody_is_proven_counts_whole() -> None:
    seen = probation().without(view(beside=CROWD), 0.0)
    assert names(seen, 1) == set(CROWD)


def test_in_our_stage_a_newcomer_counts_once_it_is_admitted() -> None:
    on = probation()
    assert names(on.without(view([ME, SIBLING, NEW, *CROWD]), 0.0), 0) == {ME, SIBLING}
    assert on.leaves_out(NEW)
    assert on.admit([NEW])
    assert names(on.without(view([ME, SIBLING, NEW, *CROWD]), 0.0), 0) == {ME, SIBLING, NEW}


def test_beside_us_a_few_are_tried_and_what_they_say_of_proven_ones_does_not_count() -> None:
    seen = probation().without(view(beside=[NEXT, *CROWD], missing=[NEXT]), 0.0)
    tried = names(seen, 1) - {NEXT}
    assert len(tried) == AT_LEAST
    assert not any(replica.missing for replica in seen.serving(1))


def test_those_on_probation_may_blame_each_other_and_nobody_else() -> None:
    """Otherwise a liar among them holds up its siblings, and nobody beside them hears of it."""
    on = probation()
    seen = on.without(view(beside=[NEXT, NEW, *CROWD], missing=[NEXT, SIBLING, NEW]), 0.0)
    assert {r.missing for r in seen.serving(1) if r.peer in CROWD} == {(NEW,)}


def test_a_crowd_that_was_admitted_says_nothing_of_proven_members_beside_our_stage() -> None:
    on = probation()
    on.admit(CROWD)
    seen = on.without(view([ME, SIBLING, *CROWD], missing=[NEXT, SIBLING]), 0.0)
    assert names(seen, 0) >= set(CROWD)
    assert not any(r.missing for r in seen.serving(0))


def test_after_a_failure_nobody_is_tried_for_a_while_and_then_others() -> None:
    on, all_of_them = probation(), view(beside=[NEXT, *CROWD])
    first = names(on.without(all_of_them, 0.0), 1) - {NEXT}
    assert on.failed(first, on.without(all_of_them, 0.0), 1.0)
    assert names(on.without(all_of_them, 2.0), 1) == {NEXT}
    assert on.next_deadline() == 1.0 + ASIDE_S
    assert on.is_over(1.0 + ASIDE_S)
    second = names(on.without(all_of_them, 1.0 + ASIDE_S), 1) - {NEXT}
    assert len(second) == AT_LEAST
    assert not first & second
    on.failed(second, on.without(all_of_them, 61.0), 61.0)
    assert names(on.without(all_of_them, 61.0 + 1.5 * ASIDE_S), 1) == {NEXT}


def test_in_our_stage_one_that_was_set_aside_has_to_be_admitted_again() -> None:
    on, all_of_us = probation(), view([ME, SIBLING, NEW, *CROWD[:2]])
    on.admit(CROWD[:2])
    assert names(on.without(all_of_us, 0.0), 0) == {ME, SIBLING, *CROWD[:2]}
    on.failed(CROWD[:2], on.without(all_of_us, 0.0), 0.0)
    on.admit([NEW])
    assert names(on.without(all_of_us, ASIDE_S), 0) == {ME, SIBLING, NEW}
    assert on.admit(CROWD[:1])
    assert names(on.without(all_of_us, ASIDE_S), 0) == {ME, SIBLING, NEW, CROWD[0]}


def test_who_was_tried_along_with_those_that_failed_goes_on() -> None:
    """Else whoever is let in together with a crowd never closes a step."""
    on, all_of_us = probation(), view([ME, SIBLING, NEW, *CROWD])
    on.admit([NEW, *CROWD[:3]])
    on.failed(CROWD[:3], on.without(all_of_us, 0.0), 0.0)
    on.admit([CROWD[3]])
    assert names(on.without(all_of_us, 1.0), 0) == {ME, SIBLING, NEW}
    assert on.leaves_out(CROWD[3])
    on.failed([NEW], on.without(all_of_us, 2.0), 2.0)
    assert names(on.without(all_of_us, 3.0), 0) == {ME, SIBLING}


def test_who_is_to_be_tried_next_waits_until_the_while_is_over() -> None:
    """Also if it had its place before, and only fetched the state meanwhile."""
    on = probation()
    on.admit([NEW, CROWD[0]])
    serving = view([ME, SIBLING, NEW, CROWD[0]])
    fetching = [structs.replace(r, serving=r.peer != NEW) for r in serving.stages[0]]
    before = SwarmView.of([fetching, serving.stages[1]])
    on.failed(CROWD[:1], on.without(before, 0.0), 0.0)
    assert NEW not in names(on.without(serving, 1.0), 0)
    assert NEW in names(on.without(serving, ASIDE_S), 0)


def test_work_that_counts_ends_the_while() -> None:
    on, seen = probation(), view(beside=[NEXT, NEW])
    on.failed({NEW}, seen, 0.0)
    on.proved({NEXT, NEW}, seen)
    assert names(on.without(seen, 1.0), 1) == {NEXT, NEW}


def test_that_a_proven_one_is_set_aside_closes_the_stage_to_nobody() -> None:
    on, seen = probation(), view(beside=[NEXT, NEW])
    assert not on.failed({NEXT}, seen, 0.0)
    assert names(on.without(seen, 1.0), 1) == {NEXT, NEW}


def test_failures_are_remembered_within_a_bound() -> None:
    on = probation()
    on.failed([PeerId(str(n)) for n in range(2 * MAX_FAILURES)], view(), 0.0)
    assert len(on._failures) == MAX_FAILURES


def test_we_vouch_for_proven_peers_where_any_is() -> None:
    quorum, crowded = Quorum(ME, 0, None), view([ME, SIBLING, *CROWD], [NEXT, *CROWD])
    assert quorum.vouch(crowded, PROVEN.__contains__) == [NEXT]
    assert set(quorum.vouch(view(beside=CROWD[:2]), PROVEN.__contains__)) == set(CROWD[:2])


def test_a_leader_admits_few_of_a_crowd_at_a_time_and_all_that_are_proven() -> None:
    newcomers = Newcomers(Place(ME, 0, 2, 8), {ME, NEW}.__contains__)
    for peer in [*CROWD, NEW]:
        newcomers.ask(peer, 0.0)
    newcomers.admit([ME], {ME}, 5, b"", None, 0.0)
    admitted = set(newcomers.observing(0.0))
    assert NEW in admitted
    assert len(admitted & set(CROWD)) == NEW_AT_ONCE


def test_those_admitted_make_no_room_for_more_of_a_crowd() -> None:
    newcomers = Newcomers(Place(ME, 0, 2, 8), {ME}.__contains__)
    let_in = set[PeerId]()
    for peer in CROWD:
        newcomers.ask(peer, 0.0)
        newcomers.admit([ME, *let_in], {ME, *let_in}, 5, b"", None, 0.0)
        let_in = set(newcomers.observing(0.0))
    assert len(let_in) == NEW_AT_ONCE


def test_those_set_aside_keep_their_places_so_that_the_next_leader_admits_no_others() -> None:
    newcomers = Newcomers(Place(ME, 0, 2, 8), {ME, NEW}.__contains__)
    for peer in CROWD[:NEW_AT_ONCE]:
        assert newcomers.lets_in(peer, [ME], (), 0.0)  # by the last leader
    late = FORGET_S + 1
    newcomers.ask(CROWD[-1], late)
    newcomers.ask(NEW, late)
    newcomers.admit([ME], {ME}, 5, b"", None, late)
    assert newcomers.observing(late) == [NEW]
    newcomers.ask(CROWD[-1], ASIDE_S)
    newcomers.admit([ME], {ME}, 5, b"", None, ASIDE_S)
    assert CROWD[-1] in newcomers.observing(ASIDE_S)


def seat() -> Seat:
    made = Seat(
        Place(ME, 0, 2, 8),
        size=64,
        steps=9,
        tokens_per_step=1,
        step=5,
        serving=True,
        proves=PROVEN.__contains__,
    )
    before = commit_of(0, 4, 1, bytes(32), [ME, SIBLING], electors=[SIBLING, NEXT])
    admit = Admit(0, 5, ME, [SIBLING], before)
    made.admitted_by(admit, 0.0)
    made.update_view(view([ME, SIBLING, NEW, *CROWD], missing=[SIBLING]), 0.0)
    return made


def plan(*, members: Collection[PeerId], observers: Collection[PeerId] = ()) -> Plan:
    split = [
        PlanMember(peer, to_bitmap(range(40, 48) if peer == ME else (), 5, 8)) for peer in members
    ]
    bounds = segmented(shard_bounds(64, [0.0] * len(members)))
    return Plan(0, 5, 1, split, bounds, list[str](observers))


def test_a_seat_neither_hears_nor_blames_whom_it_does_not_count_yet() -> None:
    made = seat()
    assert names(made._view, 0) == {ME, SIBLING}
    assert not made.standing.aside()
    assert made.receive(CROWD[0], LedgerReport(0, 5, 1, b"\xff", b"\x00", 0), 0.0) == []
    assert CROWD[0] not in made.leader.reports
    made.receive(SIBLING, Admit(0, 5, NEW, [SIBLING]), 0.0)
    assert names(made._view, 0) == {ME, SIBLING, NEW}


def test_who_is_on_no_roll_admits_nobody() -> None:
    made = seat()
    made.receive(SIBLING, Admit(0, 5, NEW, [SIBLING]), 0.0)
    for peer in CROWD[:19]:
        assert made.receive(NEW, Admit(0, 5, peer, [ME]), 0.0) == [], "nor has it a snapshot made"
    assert names(made._view, 0) == {ME, SIBLING, NEW}


def test_a_member_admits_few_at_a_time_and_in_a_plan_no_more() -> None:
    made = seat()
    for peer in CROWD[:19]:
        made.receive(SIBLING, Admit(0, 5, peer, [SIBLING]), 0.0)
    assert len(names(made._view, 0).intersection(CROWD)) == NEW_AT_ONCE
    made.receive(SIBLING, plan(members=[ME, SIBLING], observers=CROWD[:19]), 0.0)
    assert len(names(made._view, 0).intersection(CROWD)) == NEW_AT_ONCE


def test_who_is_on_no_roll_makes_no_plan() -> None:
    """Otherwise it would take each plan from its leader by a later attempt."""
    made = seat()
    made.receive(SIBLING, Admit(0, 5, NEW, [SIBLING]), 0.0)
    made.receive(NEW, plan(members=[ME, NEW]), 0.0)
    assert made.member.promised == 0
    made.receive(SIBLING, plan(members=[ME, SIBLING]), 0.0)
    assert made.member.promised == 1
