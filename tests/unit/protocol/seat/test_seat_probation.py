"""Probation: replicas that nobody here has worked with count for little, and a crowd of them for
no more."""

from __future__ import annotations

from collections.abc import Collection

from protocol.ids import PeerId
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.place import Place
from protocol.rounds.newcomers import Newcomers
from protocol.rounds.quorum import Quorum
from protocol.rounds.shards import segmented, shard_bounds
from protocol.seat.probation import (
    BESIDE,
    CLOSED_S,
    MAX_FAILURES,
    NEW_AT_ONCE,
    NEW_S,
    Probation,
)
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Admit, LedgerReport, Plan
from protocol.wire.parts import PlanMember

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
    assert on.admit([NEW], 0.0)
    assert names(on.without(view([ME, SIBLING, NEW, *CROWD]), 0.0), 0) == {ME, SIBLING, NEW}


def test_beside_us_a_few_are_tried_and_what_they_say_of_proven_ones_does_not_count() -> None:
    seen = probation().without(view(beside=[NEXT, *CROWD], missing=[NEXT]), 0.0)
    tried = names(seen, 1) - {NEXT}
    assert len(tried) == BESIDE
    assert not any(replica.missing for replica in seen.serving(1))


def test_those_on_probation_may_blame_each_other_and_nobody_else() -> None:
    """Otherwise a liar among them holds up its siblings, and nobody beside them hears of it."""
    on = probation()
    seen = on.without(view(beside=[NEXT, NEW, *CROWD], missing=[NEXT, SIBLING, NEW]), 0.0)
    assert {r.missing for r in seen.serving(1) if r.peer in CROWD} == {(NEW,)}


def test_a_crowd_that_was_admitted_says_nothing_of_proven_members_beside_our_stage() -> None:
    on = probation()
    on.admit(CROWD, 0.0)
    seen = on.without(view([ME, SIBLING, *CROWD], missing=[NEXT, SIBLING]), 0.0)
    assert names(seen, 0) >= set(CROWD)
    assert not any(r.missing for r in seen.serving(0))


def test_the_place_of_one_that_failed_stays_empty_for_a_while_and_then_others_are_tried() -> None:
    on, all_of_them = probation(), view(beside=[NEXT, *CROWD])
    first = names(on.without(all_of_them, 0.0), 1) - {NEXT}
    one, other = sorted(first)
    assert on.failed([one], 1.0)
    assert names(on.without(all_of_them, 2.0), 1) == {NEXT, other}, "it goes on"
    assert on.failed([other], 3.0)
    assert names(on.without(all_of_them, 4.0), 1) == {NEXT}
    assert on.next_deadline() == 1.0 + CLOSED_S
    assert on.is_over(1.0 + CLOSED_S)
    second = names(on.without(all_of_them, 1.0 + CLOSED_S), 1) - {NEXT}
    assert len(second) == 1
    assert names(on.without(all_of_them, 3.0 + CLOSED_S), 1) - {NEXT} == second, "twice as long"
    later = names(on.without(all_of_them, 3.0 + 2 * CLOSED_S), 1) - {NEXT}
    assert len(later) == BESIDE
    assert not first & later


def test_in_our_stage_one_that_was_set_aside_has_to_be_let_in_again() -> None:
    on, all_of_us = probation(), view([ME, SIBLING, NEW, *CROWD[:2]])
    on.admit([NEW, *CROWD[:2]], 0.0)
    assert names(on.without(all_of_us, 0.0), 0) == {ME, SIBLING, NEW, *CROWD[:2]}
    on.failed(CROWD[:1], 0.0)
    assert names(on.without(all_of_us, 1.0), 0) == {ME, SIBLING, NEW, CROWD[1]}, "the others go on"
    assert not on.lets_in(CROWD[0], 1.0)
    assert names(on.without(all_of_us, CLOSED_S), 0) == {ME, SIBLING, NEW, CROWD[1]}
    assert on.lets_in(CROWD[0], CLOSED_S)
    assert names(on.without(all_of_us, CLOSED_S), 0) == {ME, SIBLING, NEW, *CROWD[:2]}


def test_work_that_counts_ends_the_while() -> None:
    on, seen = probation(), view(beside=[NEXT, NEW])
    on.without(seen, 0.0)
    on.failed({NEW}, 0.0)
    assert names(on.without(seen, 1.0), 1) == {NEXT}
    on.proved({NEXT, NEW})
    assert names(on.without(seen, 1.0), 1) == {NEXT, NEW}


def test_that_a_proven_one_is_set_aside_closes_the_stage_to_nobody() -> None:
    on, seen = probation(), view(beside=[NEXT, NEW])
    on.without(seen, 0.0)
    assert not on.failed({NEXT}, 0.0)
    assert names(on.without(seen, 1.0), 1) == {NEXT, NEW}


def test_failures_are_remembered_within_a_bound() -> None:
    on = probation()
    on.admit([PeerId("first")], 0.0)
    for n in range(MAX_FAILURES + 9):
        on.admit([PeerId(str(n))], n * 1e4)
        on.failed([PeerId(str(n))], n * 1e4)
    assert len(on._failures) == MAX_FAILURES


def test_we_vouch_for_proven_peers_where_any_is() -> None:
    quorum, crowded = Quorum(ME, 0, None), view([ME, SIBLING, *CROWD], [NEXT, *CROWD])
    assert quorum.vouch(crowded, PROVEN.__contains__) == [NEXT]
    assert set(quorum.vouch(view(beside=CROWD[:2]), PROVEN.__contains__)) == set(CROWD[:2])


def test_a_leader_admits_few_of_a_crowd_at_a_time_and_all_that_are_proven() -> None:
    on, quorum = probation(), Quorum(ME, 0, None)
    newcomers = Newcomers(Place(ME, 0, 2, 8), on.lets_in)
    for peer in [*CROWD, SIBLING]:
        newcomers.ask(peer, 0.0)
    newcomers.admit([ME], {ME}, 5, b"", quorum, 0.0)
    admitted = set(newcomers.observing(0.0))
    assert SIBLING in admitted
    assert len(admitted & set(CROWD)) == NEW_AT_ONCE


def test_those_let_in_make_no_room_for_more_of_a_crowd() -> None:
    on, let_in = probation(), list[PeerId]()
    for peer in CROWD:
        on.without(view([ME, *let_in]), 0.0)
        let_in += [peer] if on.lets_in(peer, 0.0) else []
    assert len(let_in) == NEW_AT_ONCE
    on.without(view([ME, *CROWD[1:NEW_AT_ONCE]]), NEW_S)
    assert on.lets_in(CROWD[-1], NEW_S), "one of them has never come"
    assert not on.lets_in(CROWD[-2], NEW_S)


def test_those_set_aside_keep_their_places_so_that_the_next_leader_admits_no_others() -> None:
    on = probation()
    assert all(on.lets_in(peer, 0.0) for peer in CROWD[:NEW_AT_ONCE])
    on.failed(CROWD[:NEW_AT_ONCE], 1.0)
    assert on.lets_in(SIBLING, 2.0)
    assert not on.lets_in(CROWD[-1], 2.0)
    assert on.lets_in(CROWD[-1], 1.0 + CLOSED_S)


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
    admit = Admit(0, 5, ME, [SIBLING], roll=[ME, SIBLING], electors=[SIBLING, NEXT])
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
