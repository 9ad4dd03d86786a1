"""All members know alike which member is cut off from its partners."""

from __future__ import annotations

from protocol.effects import Send
from protocol.ids import PeerId
from protocol.membership.view import ViewChanged
from protocol.wire.messages import Heartbeat
from tests.support.membership_world import World
from tests.support.protocol_examples import peer, seat

FIRST, SECOND = (peer(0), peer(1)), (peer(2), peer(3))
LIAR = peer(3)


def two_by_two() -> World:
    """Two stages with two replicas each, everybody linked with everybody."""
    world = World(4, stages=2)
    world.advertise()
    world.link_all()
    for stage, names in enumerate((FIRST, SECOND)):
        for name in names:
            places = [seat(stage, 5)]
            world.perform(name, world.members[name].set_seats(places, world.now, world.wall))
    world.run(10)
    return world


def cut_off(world: World) -> dict[PeerId, frozenset[PeerId]]:
    return {name: member.cut_off() for name, member in world.members.items()}


def test_whom_the_other_stage_has_shut_out_is_cut_off_for_its_sibling_too() -> None:
    world = two_by_two()
    assert not any(cut_off(world).values())
    for name in FIRST:
        world.cut(name, LIAR)
    world.run(8)
    assert cut_off(world)[peer(2)] == {LIAR}
    changed = [e for e in world.seen[peer(2)] if isinstance(e, ViewChanged)]
    assert any("has lost others" in event.reason for event in changed)


def test_who_is_linked_again_is_not_cut_off_any_more() -> None:
    world = two_by_two()
    for name in FIRST:
        world.cut(name, LIAR)
    world.run(8)
    for name in FIRST:
        world.link(name, LIAR)
    world.run(3)
    assert not any(cut_off(world).values())


def test_one_that_calls_all_others_lost_cuts_off_nobody() -> None:
    world = two_by_two()
    member = world.members[peer(0)]
    said = Heartbeat(10_000, [seat(1, 5)], [peer(1), peer(2)], 1)
    world.perform(peer(0), member.receive(LIAR, said, world.now, world.wall))
    assert member.cut_off() == frozenset()


def test_whom_we_have_never_worked_with_decides_nothing_and_cuts_off_nobody() -> None:
    world = two_by_two()
    member = world.members[peer(0)]
    for number, name in enumerate((peer(1), LIAR)):
        said = Heartbeat(10_000, [seat(1 - number, 5)], [peer(2)], 1)
        world.perform(peer(0), member.receive(name, said, world.now, world.wall))
    assert peer(2) in member.cut_off()
    member.proves = lambda: {peer(2)}.__contains__
    assert member.cut_off() == {peer(1), LIAR}


def test_newcomers_that_meet_nobody_whom_a_waypoint_names_decide_among_themselves() -> None:
    world = World(4, stages=2)
    world.advertise()
    world.link_all()
    world.run(3)
    member = world.members[peer(0)]
    member.proves = lambda: {peer(9)}.__contains__
    assert member.cut_off() == frozenset()
    member.proves = lambda: {peer(2)}.__contains__
    assert member.cut_off() == {peer(1), peer(3)}
    member.proves = lambda: {peer(9)}.__contains__
    world.perform(peer(0), member.set_seats([seat(0, 5)], world.now, world.wall))
    assert member.cut_off() == {peer(1), peer(2), peer(3)}


def test_a_new_version_goes_at_once_only_to_neighbours_that_work_has_proven() -> None:
    world = two_by_two()
    member = world.members[peer(0)]

    def told(version: int) -> set[PeerId]:
        effects = member.set_seats([seat(0, version)], world.now, world.wall)
        return {e.peer for e in effects if isinstance(e, Send) and isinstance(e.message, Heartbeat)}

    everybody = told(100)
    assert {peer(1), peer(2)} < everybody
    member.proves = lambda: {peer(2)}.__contains__
    assert told(101) == {peer(2)}


def test_only_the_loss_of_one_that_work_has_proven_is_told_at_once() -> None:
    """Links of invented members come and go all the time."""
    world = two_by_two()
    member = world.members[peer(0)]
    member.proves = lambda: {peer(2)}.__contains__

    def told(name: PeerId) -> set[PeerId]:
        effects = member.link_down(name, "closed", world.now)
        return {e.peer for e in effects if isinstance(e, Send) and isinstance(e.message, Heartbeat)}

    assert told(LIAR) == set()
    assert told(peer(2)) == {peer(1)}
