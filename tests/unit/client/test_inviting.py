"""Fresh invites: whom they name, who can use them, and what to say of them."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from client.inviting import MAX_ADDRESSES, fresh, notes, reach, ticket_note
from client.node.node import Node
from protocol.address import Address
from protocol.invite import SwarmFile, parse_target
from protocol.vouching.ticket import TICKET_LIFE_S, Ticket
from tests.support.protocol_examples import manifest, peer, signer


def _at(host: str, member: int = 1, port: int = 4001) -> Address:
    kind = "ip4" if host[0].isdigit() else "dns4"
    return Address(kind, host, port, peer(member))  # type: ignore[arg-type]


@pytest.fixture
def swarm() -> SwarmFile:
    founder = signer(9)
    found = manifest(founder.peer)
    encoded, signature = founder.sign_manifest(found)
    return SwarmFile(found, encoded, signature, ())


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("8.8.8.8", "internet"),
        ("node.example.org", "internet"),
        ("192.168.1.4", "network"),
        ("100.64.0.1", "network"),
        ("169.254.1.1", "network"),
        ("127.0.0.1", "machine"),
        ("localhost", "machine"),
    ],
)
def test_how_far_an_address_can_be_called_from(host: str, expected: str) -> None:
    assert reach(_at(host)) == expected


def test_every_member_is_named_before_any_is_named_twice(swarm: SwarmFile) -> None:
    one = [_at("127.0.0.1"), _at("192.168.1.4"), _at("8.8.8.8"), _at("8.8.4.4")]
    two = [_at("127.0.0.1", 2), _at("9.9.9.9", 2)]
    three = [_at("10.0.0.7", 3)]
    found = fresh(swarm, [one, two, three])
    assert found.peers == (_at("8.8.8.8"), _at("9.9.9.9", 2), _at("8.8.4.4"), _at("10.0.0.7", 3))
    assert notes(found) == []
    assert parse_target(str(found.invite)) == found.invite
    assert parse_target(str(found)) == found


def test_an_invite_is_bounded_and_its_short_forms_are_invites(swarm: SwarmFile) -> None:
    many = [[_at(f"8.8.8.{number}", number)] for number in range(1, 40)]
    found = fresh(swarm, many)
    assert found.peers == tuple(address for (address,) in many[:MAX_ADDRESSES])


def test_an_invite_of_no_use_elsewhere_says_so(swarm: SwarmFile) -> None:
    here = fresh(swarm, [[_at("127.0.0.1")]])
    assert "on this machine" in " ".join(notes(here))
    near = fresh(swarm, [[_at("127.0.0.1"), _at("192.168.1.4")], [_at("127.0.0.1", 2)]])
    assert near.peers == (_at("192.168.1.4"),), "loopback is of no use to anybody else"
    assert "same network" in " ".join(notes(near))


@pytest.mark.parametrize(
    ("life_s", "words"),
    [(TICKET_LIFE_S, "7 days"), (5400.0, "90 minutes"), (36 * 3600.0, "36 hours"), (1.0, "1 sec")],
)
def test_the_note_of_a_ticket_says_for_how_long_it_is_good(life_s: float, words: str) -> None:
    assert f"one volunteer within {words}" in ticket_note(Ticket(bytes(32), 1, 1), life_s)


@pytest.mark.parametrize("belongs", [False, True])
def test_an_invite_is_shown_to_whom_it_names_first(swarm: SwarmFile, belongs: bool) -> None:
    """What is remembered beside it did not make it, and would refuse us."""
    named = [_at("8.8.8.8", 2), _at("9.9.9.9", 2), _at("8.8.4.4", 3)]
    invited = SimpleNamespace(
        _register=SimpleNamespace(belongs=belongs), _swarm=replace(swarm, peers=tuple(named))
    )
    shown = [number for number in (2, 3, 4) if Node._greets(cast(Node, invited), peer(number))]
    assert shown == ([2, 3, 4] if belongs else [2])
