"""Port mapping on virtual time: asked side by side, renewed, replaced, given back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.pace import ASIDE_S
from protocol.port_mapping.machine import (
    LEASE_S,
    AskMapping,
    EndMapping,
    PortMapping,
)
from protocol.port_mapping.mapped import WAYS, Mapped, Way

HOST, PORT = "11.0.1.2", 4001
HERE = Mapped(HOST, PORT, LEASE_S)


def begun() -> PortMapping:
    machine = PortMapping((5001, 5002))
    assert machine.want(PORT, 0.0) == [AskMapping(way, PORT, PORT, LEASE_S) for way in WAYS]
    assert machine.want(PORT, 0.0) == []
    return machine


def refuse(machine: PortMapping, now: float, *ways: Way) -> None:
    for way in ways:
        assert machine.refused(way, "no", now, conflict=False) == []


def test_the_first_mapping_is_kept_and_another_given_back() -> None:
    machine = begun()
    assert machine.mapped("pcp", HERE, 1.0) == []
    assert (machine.held, machine.way) == (HERE, "pcp")
    other = Mapped(HOST, 5555, LEASE_S)
    assert machine.mapped("upnp", other, 2.0) == [EndMapping("upnp", PORT, 5555)]
    assert machine.held == HERE
    assert machine.close() == [EndMapping("pcp", PORT, PORT)]
    assert machine.held is None
    assert machine.tick(1e9) == []


def test_the_same_mapping_by_another_way_stays() -> None:
    machine = begun()
    assert machine.mapped("upnp", HERE, 1.0) == machine.mapped("pcp", HERE, 1.0) == []
    assert (machine.held, machine.way) == (HERE, "upnp")


def test_it_is_renewed_after_half_of_what_was_granted() -> None:
    machine = begun()
    machine.mapped("pcp", Mapped(HOST, 4100, 600), 0.0)
    refuse(machine, 0.0, "upnp")
    assert machine.tick(299.0) == []
    assert machine.tick(300.0) == [AskMapping("pcp", PORT, 4100, LEASE_S)]
    assert machine.tick(301.0) == []
    machine.mapped("pcp", Mapped(HOST, 4100, 600), 302.0)
    assert machine.tick(601.0) == []
    assert machine.tick(602.0) == [AskMapping("pcp", PORT, 4100, LEASE_S)]


def test_a_renewal_that_fails_is_repeated_until_the_lease_ends() -> None:
    machine = begun()
    machine.mapped("pcp", Mapped(HOST, PORT, 600), 0.0)
    refuse(machine, 0.0, "upnp")
    now, asked = 0.0, 0
    while machine.held is not None:
        now += 1.0
        for effect in machine.tick(now):
            if machine.held is not None:
                asked += 1
                refuse(machine, now, effect.way)
    assert now == 600.0
    assert asked == 5
    assert set(machine._asking) == set(WAYS)


def test_a_lease_that_is_granted_for_nothing_does_not_make_us_ask_all_the_time() -> None:
    machine = begun()
    machine.mapped("pcp", Mapped(HOST, PORT, 0), 0.0)
    assert machine.tick(ASIDE_S - 1) == []


def test_a_port_that_is_somebody_elses_is_replaced() -> None:
    machine = begun()
    for port in (5001, 5002):
        effects = machine.refused("upnp", "Conflict", 0.0, conflict=True)
        assert effects == [AskMapping("upnp", PORT, port, LEASE_S)]
    assert machine.refused("upnp", "Conflict", 0.0, conflict=True) == []
    assert machine.reasons == {"upnp": "Conflict"}


def test_while_nothing_maps_it_is_tried_more_and_more_rarely() -> None:
    machine, tried, now = begun(), [], 0.0
    refuse(machine, 0.0, *WAYS)
    while now < 5 * LEASE_S / 2:
        now += 1.0
        if machine.tick(now):
            tried.append(now)
            refuse(machine, now, *WAYS)
    pauses = [later - earlier for earlier, later in zip([0.0, *tried], tried, strict=False)]
    assert pauses[0] == ASIDE_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == LEASE_S / 2


def test_in_another_network_it_begins_anew_and_gives_nothing_back_there() -> None:
    machine = begun()
    machine.mapped("pcp", HERE, 0.0)
    assert [type(effect) for effect in machine.moved(5.0)] == [AskMapping] * len(WAYS)
    assert machine.held is None
    assert machine.close() == []


def test_what_a_router_may_have_forgotten_is_asked_for_again_and_kept_meanwhile() -> None:
    machine = begun()
    machine.mapped("pcp", HERE, 0.0)
    refuse(machine, 0.0, "upnp")
    machine.renew(10.0)
    assert machine.held == HERE
    assert machine.tick(10.0) == [AskMapping("pcp", PORT, PORT, LEASE_S)]
    moved = Mapped("11.1.1.2", PORT, LEASE_S)
    machine.mapped("pcp", moved, 11.0)
    assert machine.held == moved
    without = begun()
    refuse(without, 0.0, *WAYS)
    assert without.tick(1.0) == []
    without.renew(2.0)
    assert without.tick(2.0) == [AskMapping(way, PORT, PORT, LEASE_S) for way in WAYS]


def test_another_port_or_none_ends_the_mapping() -> None:
    machine = begun()
    machine.mapped("pcp", HERE, 0.0)
    end, *asked = machine.want(4009, 1.0)
    assert end == EndMapping("pcp", PORT, PORT)
    assert asked == [AskMapping(way, 4009, 4009, LEASE_S) for way in WAYS]
    machine.mapped("upnp", Mapped(HOST, 4009, LEASE_S), 2.0)
    assert machine.want(None, 3.0) == [EndMapping("upnp", 4009, 4009)]
    assert machine.tick(1e9) == []


def test_answers_to_nothing_are_ignored() -> None:
    machine = PortMapping(())
    assert machine.mapped("pcp", HERE, 0.0) == []
    assert machine.refused("pcp", "no", 0.0, conflict=True) == []
    assert machine.held is None
    assert machine.reasons == {}


@given(st.data())
def test_whatever_routers_say_what_is_held_is_given_back_at_the_end(data: st.DataObject) -> None:
    machine, now = begun(), 0.0
    for _ in range(data.draw(st.integers(1, 40))):
        now += data.draw(st.floats(0, 4000))
        way: Way = data.draw(st.sampled_from(WAYS))
        match data.draw(st.integers(0, 3)):
            case 0:
                port, lease = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 9999))
                machine.mapped(way, Mapped(HOST, port, lease), now)
            case 1:
                machine.refused(way, "no", now, conflict=data.draw(st.booleans()))
            case 2:
                machine.moved(now)
            case _:
                machine.tick(now)
    held, way_held = machine.held, machine.way
    expected = [] if held is None else [EndMapping(way_held or "pcp", PORT, held.port)]
    assert machine.close() == expected
