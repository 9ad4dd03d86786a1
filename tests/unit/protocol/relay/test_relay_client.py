"""Where a member that nobody can dial keeps its reservations."""

from collections.abc import Mapping

import pytest

from protocol.ids import PeerId
from protocol.pace import ASIDE_S
from protocol.relay.client import RelayClient

R1, R2, R3, R4 = (PeerId(f"relay {n}") for n in range(1, 5))


def client(relays: Mapping[PeerId, str], *granted: PeerId) -> RelayClient:
    machine = RelayClient()
    machine.update(relays, True, 0.0)
    for relay in granted:
        assert machine.answered(relay, True, 0.0) == []
    assert set(machine.relays) == set(granted)
    return machine


@pytest.mark.parametrize(
    ("relays", "asked"),
    [
        ({}, []),
        ({R1: "p"}, [R1]),
        ({R1: "p", R2: "q", R3: "r"}, [R1, R2]),
        ({R1: "p", R2: "p", R3: "q"}, [R1, R3]),
        ({R1: "p", R2: "p"}, [R1, R2]),
    ],
)
def test_two_relays_of_different_prefixes_are_asked(
    relays: dict[PeerId, str], asked: list[PeerId]
) -> None:
    machine = RelayClient()
    assert machine.update(relays, True, 0.0) == asked
    assert machine.tick(1.0) == []  # they are being asked


def test_who_is_dialled_reserves_nowhere() -> None:
    machine = RelayClient()
    assert machine.update({R1: "p"}, False, 0.0) == []
    assert machine.tick(1000.0) == []


def test_a_reservation_goes_on_and_is_given_up_when_no_longer_needed() -> None:
    machine = client({R1: "p", R2: "q"}, R1, R2)
    assert machine.relays == (R1, R2)
    for now in (299.9, 300.0, 600.0, 1e6):
        assert machine.tick(now) == []
        assert machine.relays == (R1, R2)
    assert machine.update({}, False, 1e6) == []
    assert machine.relays == ()


def test_a_reservation_goes_on_where_it_would_be_made_now() -> None:
    """Whom work has proven is among the best; who was there before the others is so no more."""
    machine = client({R1: "p", R2: "q"}, R1, R2)
    assert machine.update({R3: "r", R2: "q", R1: "p"}, True, 299.0) == []
    assert machine.tick(300.0) == [R3]
    assert machine.relays == (R2, R1)
    assert machine.answered(R3, False, 301.0) == []
    assert machine.relays == (R1, R2), "R1 is better than none"
    assert machine.update({R4: "r", R2: "q"}, True, 350.0) == [R4], "R1 relays no more"
    machine.answered(R4, True, 351.0)
    assert machine.relays == (R2, R4, R1), "it lapses"
    assert machine.tick(649.9) == []
    assert machine.relays == (R2, R4, R1)
    assert machine.tick(650.0) == []
    assert machine.relays == (R2, R4)


def test_a_relay_that_refuses_is_avoided_for_a_while() -> None:
    machine = RelayClient()
    machine.update({R1: "p", R2: "q", R3: "r"}, True, 0.0)
    assert machine.answered(R1, False, 1.0) == [R3]
    machine.answered(R2, True, 1.0)
    assert machine.answered(R3, False, 2.0) == []  # nobody is left to ask
    assert machine.tick(0.9 + ASIDE_S) == []
    assert machine.tick(1.0 + ASIDE_S) == [R1]


def test_in_another_network_relays_that_were_of_no_use_are_asked_again() -> None:
    machine = client({R1: "p", R2: "q"})
    machine.answered(R1, False, 1.0)
    assert machine.tick(2.0) == []
    assert machine.renew(3.0) == [R1]
    machine.answered(R1, True, 4.0)
    assert machine.answered(R2, False, 5.0) == [R2]  # it was asked from the old network
    assert machine.answered(R2, False, 6.0) == []


def test_a_lost_relay_is_replaced_at_once() -> None:
    machine = client({R1: "p", R2: "q", R3: "r"}, R1, R2)
    assert machine.lost(R1, 5.0) == [R1]  # the best that is free; its link may be made anew
    assert machine.relays == (R2,)


def test_a_relay_that_ends_a_reservation_and_not_its_link_is_left_alone() -> None:
    machine = client({R1: "p", R2: "q"}, R1, R2)
    assert machine.lost(R1, 5.0, refused=True) == []
    assert machine.tick(4.9 + ASIDE_S) == []
    assert machine.tick(5.0 + ASIDE_S) == [R1]


def test_a_relay_that_leaves_is_replaced_before_it_is_gone() -> None:
    machine = client({R1: "p", R2: "q", R3: "r"}, R1, R2)
    assert machine.update({R2: "q", R3: "r"}, True, 5.0) == [R3]
    assert machine.update({R2: "q", R3: "r"}, True, 6.0) == []
    assert machine.relays == (R2, R1)  # still named, but last
    machine.answered(R3, True, 7.0)
    assert machine.lost(R1, 30.0) == []
    assert machine.relays == (R2, R3)


def test_an_answer_that_was_not_asked_for_changes_nothing() -> None:
    machine = client({R1: "p"}, R1)
    assert machine.answered(R4, True, 1.0) == []
    assert machine.lost(R4, 1.0) == []
    assert machine.relays == (R1,)


def test_the_relays_that_are_asked_are_needed() -> None:
    machine = client({R1: "p", R2: "q"}, R1)
    assert machine.needed == (R1, R2)
    machine.answered(R2, True, 0.0)
    assert machine.needed == (R1, R2)
