"""Members that work has not proven decide nothing, and are told of new versions later."""

from protocol.effects import Send
from protocol.ids import PeerId
from protocol.wire.messages import Heartbeat
from tests.support.membership_world import World
from tests.support.protocol_examples import peer, seat

FIRST, SECOND = (peer(0), peer(1)), (peer(2), peer(3))


def two_by_two() -> World:
    """Two stages with two replicas each, everybody linked with everybody."""
    world = World(4, stages=2)
    world.advertise()
    world.link_all()
    for stage, names in enumerate((FIRST, SECOND)):
        for name in names:
            places = [seat(stage, 5)]
            world.perform(name, world.members[name].set_seats(places, world.now))
    world.run(10)
    return world


def test_whom_we_have_never_worked_with_decides_nothing() -> None:
    member = two_by_two().members[peer(0)]
    assert member.unproven() == frozenset()
    member.is_new = lambda of: of != peer(2)
    assert member.unproven() == {peer(1), peer(3)}


def test_newcomers_that_meet_nobody_whom_a_waypoint_names_decide_among_themselves() -> None:
    world = World(4, stages=2)
    world.advertise()
    world.link_all()
    world.run(3)
    member = world.members[peer(0)]
    member.is_new = lambda of: of != peer(9)
    assert member.unproven() == frozenset()
    member.is_new = lambda of: of != peer(2)
    assert member.unproven() == {peer(1), peer(3)}
    member.is_new = lambda of: of != peer(9)
    world.perform(peer(0), member.set_seats([seat(0, 5)], world.now))
    assert member.unproven() == {peer(1), peer(2), peer(3)}


def test_a_new_version_goes_at_once_only_to_neighbours_that_work_has_proven() -> None:
    world = two_by_two()
    member = world.members[peer(0)]

    def told(version: int) -> set[PeerId]:
        effects = member.set_seats([seat(0, version)], world.now)
        return {e.peer for e in effects if isinstance(e, Send) and isinstance(e.message, Heartbeat)}

    everybody = told(100)
    assert {peer(1), peer(2)} < everybody
    member.is_new = lambda of: of != peer(2)
    assert told(101) == {peer(2)}
