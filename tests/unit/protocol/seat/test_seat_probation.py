"""Probation: replicas that nobody here has worked with count for little, and a crowd of them for
no more."""

from collections.abc import Collection

from msgspec import structs

from client.lab.simulate.electing import UnsplitQuorum
from protocol.ids import PeerId
from protocol.pace import ASIDE_S, FORGET_S, LOST_S
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.place import Place
from protocol.rounds.admissions import OFTEN, Admissions
from protocol.rounds.shards import segmented, shard_bounds
from protocol.seat.effects import Snapshot
from protocol.seat.seat import Seat
from protocol.seat.standing import MAX_PEERS, NEW_AT_ONCE, TRIED_AT_LEAST, Standing
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Admit, LedgerReport, Plan
from protocol.wire.parts import PlanMember
from tests.support.decrees import commit_of
from tests.support.seats import seat_of

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


def probation(*, settled: bool = True) -> Standing:
    place = Place(ME, 0, 2, 8)
    quorum = UnsplitQuorum(ME, 0)
    if settled:
        quorum.settle([ME, SIBLING], [ME, SIBLING, NEXT], 5, 0.0)
    return Standing(place, quorum, PROVEN.__contains__)


def counted(on: Standing, whole: SwarmView, now: float, stage: int) -> set[PeerId]:
    """Return who counts in a stage, of those that membership sees."""
    on.update(whole, now)
    return names(on.seen, stage)


def fail(on: Standing, peers: Collection[PeerId], now: float) -> None:
    """Set these aside together."""
    for peer in sorted(peers):
        on._decide(peer, ME, int(peer in names(on.seen, 1)), "it sleeps", now)
    on.tick(now)


def test_before_our_first_plan_and_where_nobody_is_proven_everybody_counts() -> None:
    assert counted(probation(settled=False), view([ME, *CROWD]), 0.0, 0) == {ME, *CROWD}
    assert counted(probation(), view(beside=CROWD), 0.0, 1) == set(CROWD)


def test_in_our_stage_a_newcomer_counts_once_it_is_admitted() -> None:
    on = probation()
    assert counted(on, view([ME, SIBLING, NEW, *CROWD]), 0.0, 0) == {ME, SIBLING}
    assert on.waits(NEW)
    on.admit([NEW], 0.0)
    assert names(on.view, 0) == {ME, SIBLING, NEW}
    assert not on.waits(NEW)


def test_those_on_probation_may_blame_each_other_and_nobody_else() -> None:
    """Otherwise a liar among them holds up its siblings, and nobody beside them hears of it."""
    on = probation()
    on.update(view(beside=[NEXT, NEW, *CROWD], missing=[NEXT, SIBLING, NEW]), 0.0)
    assert {r.missing for r in on.seen.serving(1) if r.peer in CROWD} == {(NEW,)}
    on.admit(CROWD, 0.0)
    assert counted(on, view([ME, SIBLING, *CROWD], missing=[NEXT, SIBLING]), 0.0, 0) >= set(CROWD)
    assert not any(r.missing for r in on.seen.serving(0))


def test_after_a_failure_nobody_is_tried_for_a_while_and_then_others() -> None:
    on, all_of_them = probation(), view(beside=[NEXT, *CROWD])
    first = counted(on, all_of_them, 0.0, 1) - {NEXT}
    fail(on, first, 1.0)
    assert counted(on, all_of_them, 2.0, 1) == {NEXT}
    for look in range(1, 8):  # whether their stage goes on without them
        on.tick(1.0 + look * LOST_S)
    on.tick(1.0 + ASIDE_S - 0.1)
    assert names(on.seen, 1) == {NEXT}
    on.tick(1.0 + ASIDE_S)
    second = names(on.seen, 1) - {NEXT}
    assert len(second) == TRIED_AT_LEAST
    assert not first & second
    fail(on, second, 61.0)
    assert counted(on, all_of_them, 61.0 + 1.5 * ASIDE_S, 1) == {NEXT}


def test_in_our_stage_one_that_was_set_aside_has_to_be_admitted_again() -> None:
    on, all_of_us = probation(), view([ME, SIBLING, NEW, *CROWD[:2]])
    on.admit(CROWD[:2], 0.0)
    assert counted(on, all_of_us, 0.0, 0) == {ME, SIBLING, *CROWD[:2]}
    fail(on, CROWD[:2], 0.0)
    on.admit([NEW, CROWD[1]], 1.0)
    on.tick(ASIDE_S)
    assert not on.aside()
    assert counted(on, all_of_us, ASIDE_S, 0) == {ME, SIBLING, NEW}
    on.admit(CROWD[:1], ASIDE_S)
    assert names(on.view, 0) == {ME, SIBLING, NEW, CROWD[0]}


def test_who_is_to_be_tried_next_waits_until_the_while_is_over() -> None:
    """Also if it had its place before, and only fetched the state meanwhile."""
    on = probation()
    on.admit([NEW, CROWD[0]], 0.0)
    serving = view([ME, SIBLING, NEW, CROWD[0]])
    fetching = [structs.replace(r, serving=r.peer != NEW) for r in serving.stages[0]]
    on.update(SwarmView.of([fetching, serving.stages[1]]), 0.0)
    fail(on, CROWD[:1], 0.0)
    assert NEW not in counted(on, serving, 1.0, 0)
    assert NEW in counted(on, serving, ASIDE_S, 0)


def test_work_that_counts_ends_the_while() -> None:
    on, whole = probation(), view(beside=[NEXT, NEW, *CROWD[:2]])
    tried = counted(on, whole, 0.0, 1) - {NEXT}
    failed, fine = sorted(tried)
    fail(on, [failed], 0.0)
    assert counted(on, whole, 1.0, 1) == {NEXT, fine}
    on.closed_with({NEXT, fine})
    assert len(counted(on, whole, 1.0, 1)) == 1 + TRIED_AT_LEAST


def test_that_a_proven_one_is_set_aside_closes_the_stage_to_nobody() -> None:
    on, whole = probation(), view(beside=[NEXT, NEW])
    on.update(whole, 0.0)
    fail(on, [NEXT], 0.0)
    assert counted(on, whole, 1.0, 1) == {NEXT, NEW}


def test_what_is_remembered_of_peers_is_bounded_and_who_was_admitted_goes_last() -> None:
    on = probation()
    on.admit([NEW], 0.0)
    for number in range(2 * MAX_PEERS):
        on.worked(PeerId(str(number)), number)
    assert len(on._records) == MAX_PEERS
    assert NEW in on._records


def test_we_vouch_for_proven_peers_where_any_is() -> None:
    quorum, crowded = UnsplitQuorum(ME, 0), view([ME, SIBLING, *CROWD], [NEXT, *CROWD])
    assert quorum.vouch(crowded, PROVEN.__contains__) == [NEXT]
    assert set(quorum.vouch(view(beside=CROWD[:2]), PROVEN.__contains__)) == set(CROWD[:2])


def alone(*proven: PeerId) -> Standing:
    """The standing of the only replica of a stage, to whom these are proven."""
    made = Standing(Place(ME, 0, 2, 8), UnsplitQuorum(ME, 0), {ME, *proven}.__contains__)
    made.update(view([ME], []), 0.0)
    return made


def test_a_leader_admits_few_of_a_crowd_at_a_time_and_all_that_are_proven() -> None:
    newcomers = Admissions(alone(NEW).lets_in)
    for peer in [*CROWD, NEW]:
        newcomers.ask(peer, 0.0)
    newcomers.admit({ME}, {ME}, 0.0)
    admitted = set(newcomers.observing(0.0))
    assert NEW in admitted
    assert len(admitted & set(CROWD)) == NEW_AT_ONCE


def test_those_admitted_make_no_room_for_more_of_a_crowd() -> None:
    on = alone()
    let_in = {peer for peer in CROWD if on.lets_in(peer, 0.0)}
    on.update(view([ME, *let_in], []), 1.0)
    assert len(let_in) == NEW_AT_ONCE
    assert not any(on.lets_in(peer, 1.0) for peer in CROWD if peer not in let_in)
    assert all(on.lets_in(peer, 1.0) for peer in let_in)


def test_those_set_aside_keep_their_places_so_that_the_next_leader_admits_no_others() -> None:
    on = alone(NEW)
    assert all(on.lets_in(peer, 0.0) for peer in CROWD[:NEW_AT_ONCE]), "by the last leader"
    late = FORGET_S + 1
    assert not on.lets_in(CROWD[-1], late)
    assert on.lets_in(NEW, late)
    assert on.lets_in(CROWD[-1], ASIDE_S)


def admit(joiner: PeerId, donor: PeerId = SIBLING) -> Admit:
    before = commit_of(0, 4, 1, bytes(32), [ME, SIBLING], electors=[SIBLING, NEXT])
    return Admit(0, 5, joiner, [donor], before, bytes(16))


def seat() -> Seat:
    made = seat_of(Place(ME, 0, 2, 8), 5, steps=9, proves=PROVEN.__contains__)
    made.admitted_by(admit(ME), 0.0)
    made.update_view(view([ME, SIBLING, NEW, *CROWD], missing=[SIBLING]), 0.0)
    return made


def plan(*, members: Collection[PeerId], observers: Collection[PeerId] = ()) -> Plan:
    split = [
        PlanMember(peer, to_bitmap(range(40, 48) if peer == ME else (), 5, 8)) for peer in members
    ]
    bounds = segmented(shard_bounds(64, [True] * len(members)))
    return Plan(0, 5, 1, split, bounds, list[str](observers))


def test_a_seat_neither_hears_nor_blames_whom_it_does_not_count_yet() -> None:
    made = seat()
    assert names(made._view, 0) == {ME, SIBLING}
    assert not made.standing.aside()
    assert made.receive(CROWD[0], LedgerReport(0, 5, 1, b"\xff", b"\x00", 0), 0.0) == []
    assert CROWD[0] not in made.leader.reports
    made.receive(SIBLING, admit(NEW), 0.0)
    assert names(made._view, 0) == {ME, SIBLING, NEW}


def test_who_is_on_no_roll_admits_nobody() -> None:
    made = seat()
    made.receive(SIBLING, admit(NEW), 0.0)
    for peer in CROWD[:19]:
        assert made.receive(NEW, admit(peer, ME), 0.0) == [], "nor has it a snapshot made"
    assert names(made._view, 0) == {ME, SIBLING, NEW}


def test_a_member_admits_few_at_a_time_and_in_a_plan_no_more() -> None:
    made = seat()
    for peer in CROWD[:19]:
        made.receive(SIBLING, admit(peer), 0.0)
    assert len(names(made._view, 0).intersection(CROWD)) == NEW_AT_ONCE
    made.receive(SIBLING, plan(members=[ME, SIBLING], observers=CROWD[:19]), 0.0)
    assert len(names(made._view, 0).intersection(CROWD)) == NEW_AT_ONCE


def test_nobody_has_the_state_written_again_and_again() -> None:
    """Neither who asks to be admitted without end, nor a member that says so of others."""
    made, admissions = seat(), Admissions(lambda _peer, _now: True)
    written = admitted = 0
    for now in map(float, range(600)):
        effects = made.receive(SIBLING, admit(NEW, ME), now)
        written += sum(isinstance(effect, Snapshot) for effect in effects)
        admissions.ask(NEW, now)
        found = admissions.admit({ME}, {ME}, now)
        admitted += sum(admissions.admitted(peer, now) for peer in found)
    most = OFTEN.burst + 600 / ASIDE_S
    assert OFTEN.burst <= written <= most
    assert OFTEN.burst <= admitted <= most


def test_who_is_on_no_roll_makes_no_plan() -> None:
    """Otherwise it would take each plan from its leader by a later attempt."""
    made = seat()
    made.receive(SIBLING, admit(NEW), 0.0)
    made.receive(NEW, plan(members=[ME, NEW]), 0.0)
    assert made.member.promised == 0
    made.receive(SIBLING, plan(members=[ME, SIBLING]), 0.0)
    assert made.member.promised == 1
