"""The view of the swarm: the live members, their stages, the links to keep, and the reasons."""

from collections import Counter
from collections.abc import Iterable

import pytest

from protocol.effects import Penalise, Publish, Send
from protocol.ids import PeerId
from protocol.limits import MAX_REPLICAS_IN_ROUND
from protocol.membership import rules
from protocol.membership.advert import ADVERT, Advert
from protocol.membership.membership import Membership
from protocol.membership.roster import (
    FAR_NEIGHBOURS,
    GUESTS,
    HASH_NEIGHBOURS,
    HOLDERS_OF_FAR_STAGES,
    MAX_LOST,
    PIPELINE_NEIGHBOURS,
    Roster,
)
from protocol.membership.view import ViewChanged
from protocol.rounds.quorum import Quorum
from protocol.view import SwarmView
from protocol.wire.messages import Heartbeat, Records
from protocol.wire.parts import SeatStatus
from tests.support.membership_world import World
from tests.support.protocol_examples import SWARM, WALL, advert, peer, record, seat


def mesh(size: int) -> World:
    world = World(size)
    world.advertise()
    world.link_all()
    world.run(6)
    assert world.agree()
    return world


def of_type(effects: list[object], kind: type) -> list[object]:
    return [effect for effect in effects if isinstance(effect, kind)]


def downs(effects: Iterable[object]) -> list[ViewChanged]:
    return [e for e in effects if isinstance(e, ViewChanged) and e.turned == "down"]


def test_a_lost_connection_takes_a_member_down() -> None:
    world = mesh(3)
    member = world.members[peer(0)]
    seen = member.link_down(peer(1), "connection reset", world.now)
    assert ViewChanged(peer(1), "down", "connection reset") in seen
    assert peer(1) not in member.roster.live()


def test_a_silent_member_is_down_and_then_back() -> None:
    world = mesh(3)
    hung = peer(1)
    world.stopped.add(hung)
    view = world.members[peer(0)].roster
    world.run(3.5)
    assert view.member(hung) is not None
    world.run(2.5)
    assert view.member(hung) is None
    world.stopped.clear()
    world.run(2)
    assert world.agree()
    (gone,) = downs(world.seen[peer(0)])
    assert gone.reason.startswith("silent for")


def test_a_crashed_member_is_believed_again_on_its_next_advert_only() -> None:
    roster = Roster(peer(0))
    roster.advertise(peer(1), advert(), 5)
    roster.link_up(peer(1))
    roster.link_down(peer(1), "reset")
    assert roster.advertise(peer(1), advert(), 5) == []
    up = ViewChanged(peer(1), "up", "advertised itself")
    assert roster.advertise(peer(1), advert(), 6) == [up]


def test_leaving_is_told_to_the_whole_swarm() -> None:
    world = World(5)
    world.advertise()
    world.link_ring()
    world.run(12)
    goodbye = advert(leaving=True)
    world.perform(peer(2), world.members[peer(2)].describe(goodbye, world.now))
    world.deliver()
    for number in (0, 1, 3, 4):
        assert peer(2) not in world.members[peer(number)].roster.live()


def test_an_advert_of_a_larger_swarm_does_not_outlive_the_goodbye() -> None:
    """Else who had kept it could show it again, and its author would seem to be there."""
    world, me = World(1), peer(0)
    member, others = world.members[me], [peer(number) for number in range(1, 301)]
    lives = []
    for goodbye in (False, True):
        for other in others:
            member.roster.advertise(other, advert(leaving=goodbye), 1 + goodbye)
        effects = member.describe(advert(leaving=goodbye), world.now)
        world.perform(me, effects)
        held = member.records.get(ADVERT, me)
        assert held is not None
        lives.append((held.record.expires, held.record.seq))
        world.run(1)
    assert lives[0] < lives[1]
    assert lives[1][0] == lives[0][0]


def test_adverts_are_renewed_in_time() -> None:
    world = mesh(3)
    world.run(400)
    assert world.agree()
    assert not any(map(downs, world.seen.values()))


@pytest.mark.parametrize(
    "news", [seat(2, 1), seat(2, 0, returned=True)], ids=["version", "returned"]
)
def test_how_far_a_stage_is_is_told_at_once_to_near_stages_only_and_not_advertised(
    news: SeatStatus,
) -> None:
    world = mesh(5)
    for number, stage in enumerate((2, 2, 1, 3, 0)):  # ours, a sibling, beside it, beside it, far
        place = world.members[peer(number)].set_seats([seat(stage, 0)], world.now)
        assert len(of_type(place, Send)) == 4  # that the seat is there is told to everybody
        world.perform(peer(number), place)
    world.deliver()
    holder, near = world.members[peer(0)], {peer(1), peer(2), peer(3)}
    effects = holder.set_seats([news], world.now)
    assert not of_type(effects, Publish)
    assert {send.peer for send in of_type(effects, Send)} == near
    world.perform(peer(0), effects)
    world.deliver()
    assert heard_of(world, peer(0), by=peer(1)) == news
    assert heard_of(world, peer(0), by=peer(4)) == seat(2, 0)
    world.run(1.5)  # the heartbeat of every second
    assert heard_of(world, peer(0), by=peer(4)) == news


def heard_of(world: World, of: PeerId, *, by: PeerId) -> SeatStatus:
    seats = (r for r in world.members[by].roster.serving(2) if r.peer == of)
    return next(seats).seat


def test_replicas_say_whether_they_serve_yet() -> None:
    roster = Roster(peer(0))
    roster.advertise(peer(1), advert(serves=(seat(1),)), 1)
    roster.advertise(peer(2), advert(serves=(seat(1, state="fetching"), seat(2))), 1)
    assert [r.peer for r in roster.replicas(1)] == sorted([peer(1), peer(2)])
    assert [r.peer for r in roster.serving(1)] == [peer(1)]
    assert [r.peer for r in roster.serving(2)] == [peer(2)]
    assert roster.serving(3) == ()


def test_old_and_repeated_heartbeats_change_nothing() -> None:
    machine = Membership(peer(0), SWARM, 4)
    machine.link_up(peer(1), 0.0)
    new = Heartbeat(seq=2, seats=[seat(1, 5)])
    machine.receive(peer(1), new, 0.1, WALL)
    before = machine.roster.members()
    for old in (Heartbeat(seq=1, seats=[seat(1, 4)]), new):
        assert machine.receive(peer(1), old, 0.2, WALL) == []
    assert machine.roster.members() == before


@pytest.mark.parametrize("seats", [[seat(4)], [seat(255)], [seat(1), seat(1)]])
def test_heartbeats_with_seats_that_cannot_be_are_blamed(seats: list[object]) -> None:
    machine = Membership(peer(0), SWARM, 4)
    machine.link_up(peer(1), 0.0)
    effects = machine.receive(peer(1), Heartbeat(seq=1, seats=seats), 0.1, WALL)  # type: ignore[arg-type]
    assert effects == [Penalise(peer(1), "bad-seats", 20)]


def big_roster(size: int, own: Advert) -> Roster:
    roster = Roster(peer(0))
    roster.advertise(peer(0), own, 1)
    for number in range(1, size):
        roster.advertise(peer(number), advert(serves=(seat(number % 10),)), 1)
    return roster


def stages_of(roster: Roster, peers: Iterable[PeerId]) -> Counter[int]:
    return Counter(roster.member(p).seats[0].stage for p in peers)  # type: ignore[union-attr]


def test_in_large_swarms_siblings_the_stages_beside_some_of_each_other_and_a_few_by_hash() -> None:
    roster = big_roster(300, advert(serves=(seat(4),)))
    links = stages_of(roster, roster.neighbours())
    assert links[4] == len(roster.replicas(4)) - 1  # all but ourselves
    assert links[3] + links[5] >= PIPELINE_NEIGHBOURS
    far = {stage: links[stage] for stage in (0, 1, 2, 6, 7, 8, 9)}
    assert min(far.values()) >= HOLDERS_OF_FAR_STAGES
    assert sum(far.values()) <= len(far) * HOLDERS_OF_FAR_STAGES + HASH_NEIGHBOURS
    free = big_roster(300, advert())
    assert set(stages_of(free, free.neighbours())) == set(range(10))


@pytest.mark.parametrize(("stages", "replicas"), [(1, 80), (2, 40), (6, 30), (40, 3), (96, 2)])
def test_siblings_are_linked_and_nobody_sees_more_stages_than_it_has_room_for(
    stages: int, replicas: int
) -> None:
    members = {peer(n): n % stages for n in range(stages * replicas)}
    wanted = {}
    for own in list(members)[: 2 * stages]:
        roster = Roster(own)
        for other, stage in members.items():
            roster.advertise(other, advert(serves=(seat(stage),)), 1)
        wanted[own] = set(roster.neighbours())
        assert len(wanted[own]) < 192  # a node takes 256 connections
        siblings = {other for other, stage in members.items() if stage == members[own]} - {own}
        assert len(wanted[own] & siblings) >= min(len(siblings), MAX_REPLICAS_IN_ROUND)
        seen = {members[other] for other in (own, *wanted[own])}
        assert len(seen) >= min(stages, FAR_NEIGHBOURS)


def test_neighbours_are_chosen_anew_when_somebody_goes() -> None:
    roster = big_roster(300, advert(serves=(seat(4),)))
    gone = roster.neighbours()[0]
    roster.link_down(gone, "connection reset")
    assert gone not in roster.neighbours()


def test_hash_neighbours_keep_a_large_swarm_connected() -> None:
    size = 120
    graph: dict[str, set[str]] = {peer(n): set() for n in range(size)}
    for number in range(size):
        roster = Roster(peer(number))
        for other in range(size):
            roster.advertise(peer(other), advert(), 1)
        for neighbour in roster.neighbours():
            graph[peer(number)].add(neighbour)
            graph[neighbour].add(peer(number))
    reached, frontier = {peer(0)}, [peer(0)]
    while frontier:
        fresh = graph[frontier.pop()] - reached
        reached |= fresh
        frontier += fresh  # type: ignore[arg-type]
    assert len(reached) == size


def test_without_links_it_says_nothing_and_stays_awake() -> None:
    """The last or the first member still closes steps: it has a majority of itself."""
    me, other = peer(0), peer(1)
    machine = Membership(me, SWARM, 4)
    assert machine.next_deadline() is None
    machine.describe(advert(), 0.0)
    quorum = Quorum(me, 0, machine.contacts)
    quorum.observe(SwarmView(((),) * 4), 0.0)
    held = []
    for second in range(60):
        deadline = machine.next_deadline()
        assert deadline is not None
        assert deadline <= second
        said = machine.tick(second, WALL + second)
        if second == 20:
            machine.link_up(other, second)
            machine.receive(other, Heartbeat(1, [], echo=machine._heartbeat_seq + 1), second, WALL)
            quorum.settle([me, other], [me, other], 1, second)
        elif second == 21:
            machine.link_down(other, "reset", second, by_peer=True)
        else:
            assert not [effect for effect in said if isinstance(effect, Send)]
        missing = quorum.roll - {me}
        if quorum.holds(second + 0.5) and quorum.may_go_on_without(missing, second + 0.5):
            held.append(second)
    assert held == list(range(60))


def test_a_flood_of_valid_identities_leaves_memory_bounded_and_links_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "MAX_ADVERTS", 50)
    machine = Membership(peer(0), SWARM, 4)
    for number in (1, 2):
        machine.link_up(peer(number), 0.0)
    gone = 0
    for number in [1, *range(1000, 1300), 2]:
        message = Records([record(number)])
        gone += len(downs(machine.receive(peer(min(number, 2)), message, 0.0, WALL)))
    assert len(machine.records) == len(machine.roster) == 50
    assert len(machine.roster._known) == 50
    assert {peer(1), peer(2)} <= set(machine.roster.live())
    assert gone == 1  # the latest of the flood made room for peer 2, which is linked


def test_no_state_is_left_of_peers_that_are_gone() -> None:
    machine = Membership(peer(0), SWARM, 4)
    for number in range(1, 50):
        machine.link_up(peer(number), 0.0)
        machine.link_down(peer(number), "closed", 1.0)
    assert machine.roster._known == {}
    assert machine.gossip._links == {}
    assert machine._linked == {}


def test_the_dead_are_called_again_but_not_who_said_goodbye() -> None:
    roster = Roster(peer(0))
    for number in range(1, 4):
        roster.advertise(peer(number), advert(), 1)
        roster.link_up(peer(number))
    assert roster.lost() == ()
    roster.link_down(peer(1), "reset")
    roster.advertise(peer(2), advert(leaving=True), 2)
    roster.link_down(peer(2), "leaving")
    assert roster.lost() == (peer(1),)
    roster.link_up(peer(1))
    assert roster.lost() == ()


def test_few_of_many_dead_are_called_again() -> None:
    roster = Roster(peer(0))
    for number in range(1, MAX_LOST + 9):
        roster.advertise(peer(number), advert(), 1)
        roster.link_up(peer(number))
        roster.link_down(peer(number), "reset")
    assert len(roster.lost()) == MAX_LOST
    proven = frozenset(peer(number) for number in range(1, 5))
    roster.trust(proven, GUESTS)
    assert set(roster.lost()[:4]) == proven


def crowded(count: int) -> Roster:
    """A replica with four proven members near its stage, and a crowd that says it serves beside."""
    roster = Roster(peer(0))
    roster.heard(peer(0), (seat(0),))
    roster.advertise(peer(0), advert(serves=(seat(0),)), 1)
    for number in range(1, count):
        roster.advertise(peer(number), advert(serves=(seat(number % 2),)), 1)
    return roster


@pytest.mark.parametrize("count", [40, 400])
def test_no_crowd_takes_the_places_of_members_that_work_has_proven(count: int) -> None:
    proven = frozenset(peer(number) for number in range(1, 5))
    roster = crowded(count)
    assert len(set(roster.neighbours()) - proven) > GUESTS
    roster.trust(proven, GUESTS)
    assert proven < set(roster.neighbours())
    assert len(set(roster.neighbours()) - proven) == GUESTS
    more = proven | {peer(number) for number in range(5, 15)}
    roster.trust(more, GUESTS)
    assert more < set(roster.neighbours())
    roster.trust(None, GUESTS)
    assert len(set(roster.neighbours()) - proven) > GUESTS


def test_versions_are_heard_of_peers_without_an_advert_too() -> None:
    roster = Roster(peer(0))
    roster.heard(peer(0), (seat(0, 900),))
    assert roster.newest_heard() == 0
    roster.link_up(peer(1))
    roster.heard(peer(1), (seat(0, 700),))
    assert roster.newest_heard() == 700
    assert not roster.linked()
    roster.link_down(peer(1), "reset")
    assert roster.newest_heard() == 0
