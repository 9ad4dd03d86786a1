"""Invites: the three spellings, round trips, and what strangers may write into them."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.address import Address, parse_address, parse_peer_address
from protocol.errors import ProtocolError, RemoteProtocolError
from protocol.invite import (
    MAX_INVITE_CHARS,
    MAX_SWARM_FILE_CHARS,
    Invite,
    InviteError,
    SwarmFile,
    parse_invite,
    parse_swarm_file,
    parse_target,
)
from tests.support.protocol_examples import SWARM, manifest, peer, signer

TICKET = bytes(range(32))
HERE = Address("ip4", "203.0.113.7", 4001, peer(1))
THERE = Address("dns4", "node.example.org", 65535, peer(2))


def swarm_file(ticket: bytes | None = None) -> SwarmFile:
    encoded, signature = signer(1).sign_manifest(manifest(peer(1)))
    return SwarmFile(manifest(peer(1)), encoded, signature, (HERE, THERE), ticket)


addresses = st.builds(
    Address,
    st.just("ip4"),
    st.ip_addresses(v=4).map(str),
    st.integers(1, 65535),
    st.integers(1, 50).map(peer),
)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(addresses, min_size=1, max_size=16, unique=True),
    st.none() | st.binary(min_size=32, max_size=32),
)
def test_invites_round_trip(peers: list[Address], ticket: bytes | None) -> None:
    invite = Invite(SWARM, tuple(peers), ticket)
    assert parse_target(f"  {invite}\n") == invite


@pytest.mark.parametrize("ticket", [None, TICKET])
def test_swarm_files_round_trip(ticket: bytes | None) -> None:
    original = swarm_file(ticket)
    assert parse_target(str(original)) == original
    alone = replace(original, peers=())
    assert parse_swarm_file(str(alone)) == alone
    assert parse_target(str(original.invite)) == Invite(original.swarm, (HERE, THERE), ticket)


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "\ufeff{}",
        "<{}>\r\n",
        '"{}"',
        "`{}`",
        "\u201c{}\u201d",
        "> {}",
        " > > <{}>\n> \n",
    ],
)
@pytest.mark.parametrize("width", [1000, 76, 20])
def test_what_mail_programs_and_people_put_around_an_invite_is_no_part_of_it(
    around: str, width: int
) -> None:
    original = swarm_file(TICKET)
    quoted = "> " if around.lstrip().startswith(">") else ""
    for text, meant in ((str(original.invite), original.invite), (str(THERE), THERE)):
        lines = [text[at : at + width] for at in range(0, len(text), width)]
        assert parse_target(around.format(f"\r\n{quoted}".join(lines))) == meant
    assert parse_target("\ufeff" + str(original)) == original


@pytest.mark.parametrize(
    "text",
    [
        "",
        "volunteer:",
        "volunteer:xyz?peer=" + str(HERE),
        f"volunteer:{SWARM}",
        f"volunteer:{SWARM}?peer={HERE} thanks",
        f"volunteer:{SWARM.upper()}?peer={HERE}",
        f"volunteer:{SWARM}?peer=/ip4/1.2.3.4/tcp/1",
        f"volunteer:{SWARM}?peer=%ff%fe",
        f"volunteer:{SWARM}?peer={HERE}&exec=rm",
        f"volunteer:{SWARM}?peer={HERE}&ticket=AAAA",
        f"volunteer:{SWARM}?peer={HERE}&ticket=" + "!" * 43,
        f"volunteer:{SWARM}?peer={HERE}&ticket=" + "A" * 42 + "B",
        f"volunteer:{SWARM}?" + "&".join(f"peer={replace(HERE, port=n)}" for n in range(1, 18)),
        "volunteer:" + "a" * MAX_INVITE_CHARS,
        "/ip4/1.2.3.4/tcp/1",
        "{",
        "{}",
        "[" * 100_000,
        "{" * (MAX_SWARM_FILE_CHARS + 1),
        '{"a":' * 20_000,
        json.dumps({"volunteer": 2, "manifest": "", "signature": "", "peers": []}),
        json.dumps({"volunteer": 1, "manifest": "\ud800", "signature": "", "peers": []}),
        json.dumps({"volunteer": 1, "manifest": "{}", "signature": "AA", "peers": []}),
    ],
    ids=lambda text: text[:40],
)
def test_broken_targets_are_refused_with_a_next_step(text: str) -> None:
    with pytest.raises(InviteError) as caught:
        parse_target(text)
    assert caught.value.next_step
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("key", "value"),
    [("manifest", "{}"), ("manifest", ""), ("signature", "A" * 86)],
)
def test_a_swarm_file_that_is_not_genuine_is_refused(key: str, value: str) -> None:
    document = json.loads(str(swarm_file()))
    with pytest.raises(RemoteProtocolError):
        parse_target(json.dumps(document | {key: value}))
    with pytest.raises(RemoteProtocolError, match="bad-signature"):
        parse_target(str(swarm_file()).replace('\\"seed\\":7', '\\"seed\\":8'))


@given(st.text(max_size=120))
def test_no_text_crashes_the_parser(text: str) -> None:
    for spelled in (text, "volunteer:" + text, f"volunteer:{SWARM}?{text}", "{" + text, "/" + text):
        with pytest.raises(ProtocolError):
            parse_target(spelled)


def test_an_invite_names_every_member_once() -> None:
    assert parse_invite(f"volunteer:{SWARM}?peer={HERE}&peer={HERE}").peers == (HERE,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "ip4/1.2.3.4/tcp/1",
        "/ip4/1.2.3.04/tcp/1",
        "/ip4/1.2.3.256/tcp/1",
        "/ip4/1.2.3.4/tcp/65536",
        "/ip4/1.2.3.4/tcp/+1",
        "/ip4/1.2.3.4/tcp/\u0661",
        "/ip4/1.2.3.4/tcp/1\n",
        "/ip4/1.2.3.4/udp/1",
        "/ip6/::ffff:1.2.3.4/tcp/1",
        "/ip6/fe80::1%eth0/tcp/1",
        "/ip6/1.2.3.4/tcp/1",
        "/ip6/1:2:3:4:5:6:7:8:9/tcp/1",
        "/ip6/\u0661::1/tcp/1",
        "/ip4/::1/tcp/1",
        "/ip4/1.2.3.4/tcp/1/",
        "/ip4/1.2.3.4/tcp/1/p2p/x",
        "/dns4//tcp/1",
        "/dns4/-x/tcp/1",
        "/dns4/" + "a" * 64 + "/tcp/1",
        "/dns4/" + "a." * 100 + "a/tcp/1",
        "/dns4/ex\u00e4mple/tcp/1",
        "/dns4/x y/tcp/1",
        f"{HERE}/p2p-circuit",
        f"{HERE}/p2p-circuit/p2p/{peer(1)}",  # through itself
        f"{HERE}/p2p-circuit/p2p/nobody",
        f"{HERE}/p2p/{peer(2)}",
        f"/ip4/203.0.113.7/tcp/4001/p2p-circuit/p2p/{peer(2)}",
        f"{HERE}/p2p-circuit/ip4/1.2.3.4/p2p/{peer(2)}",
        f"{HERE}/p2p-circuit/p2p/{peer(2)}/p2p-circuit/p2p/{peer(2)}",  # no chains of relays
        f"{HERE}/p2p-circuit/p2p/{peer(2)}/",
    ],
)
def test_addresses_outside_the_grammar_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_address(text)


def test_addresses_round_trip() -> None:
    by = Address(HERE.kind, HERE.host, HERE.port, peer(2), relay=peer(1))
    assert parse_address(f"{HERE}/p2p-circuit/p2p/{peer(2)}") == by
    for text in (str(by), "/ip4/0.0.0.0/tcp/1", "/dns4/localhost/tcp/65535", str(HERE), str(THERE),
                 "/ip6/2001:db8::1/tcp/1", "/ip6/::/tcp/2", "/dns6/a.example/tcp/3"):  # fmt: skip
        assert str(parse_address(text)) == text
    assert parse_address("/ip6/2001:0DB8:0::0001/tcp/1") == parse_address("/ip6/2001:db8::1/tcp/1")
    with pytest.raises(ValueError, match="PEER-ID"):
        parse_peer_address("/ip4/1.2.3.4/tcp/1")
