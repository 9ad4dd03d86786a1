"""The first exchange on a link: who is admitted, whose program is older, who has a newer one."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from client.train.messaging.admission import Vouching
from client.train.messaging.handshake import PROTOCOL, Handshake
from client.train.messaging.newer import MAX_MEMBERS, NewerPrograms
from protocol.answer import no
from protocol.invite import SwarmFile
from protocol.verdicts import Verdict, Verdicts
from protocol.wire.envelope import Signer
from protocol.wire.messages import Goodbye, Hello, decode_message, encode_message
from tests.support.protocol_examples import manifest, peer
from tests.support.recording_ports import RecordingPorts

FILE = SwarmFile(manifest(), b"manifest", bytes(64), ())
SWARM = FILE.swarm
OTHER = Signer(b"\x02" * 32).peer


def handshake(vouching: object = None, **how: Any) -> tuple[Handshake, RecordingPorts]:
    ports = RecordingPorts()
    return Handshake(FILE, ports, Verdicts(), cast(Vouching | None, vouching), **how), ports


@pytest.mark.parametrize(
    ("protocol", "words"),
    [(PROTOCOL + 1, "upgrade this program"), (PROTOCOL - 1, "its program is older")],
)
def test_another_protocol_is_refused_and_said_with_which_side_is_older(
    protocol: int, words: str
) -> None:
    me, ports = handshake()
    assert not me.hello(OTHER, Hello(protocol, SWARM, "volunteer/9"))
    (goodbye,) = ports.messages()
    assert f"protocol {PROTOCOL}, you speak {protocol}" in goodbye.reason
    told = ports.told()
    warned = [effect for effect in told if effect.level == "warning"]
    assert [words in effect.words for effect in warned] == [True]
    assert ("git pull" in told[-1].words) == (protocol > PROTOCOL)
    assert not me.hello(OTHER, Hello(protocol, None, "volunteer/9"))
    assert type(ports.messages()[-1]) is Goodbye, "nor does it get the manifest"


def test_who_is_expelled_is_refused_although_its_ban_is_forgotten() -> None:
    """Bans are kept in a table that free identities can fill."""
    me, ports = handshake()
    me.verdicts.add(Verdict(OTHER, "it lies", None))
    assert not me.hello(OTHER, Hello(PROTOCOL, SWARM, "volunteer/0"))
    assert ports.messages() == [Goodbye("you are expelled for the rest of the run")]
    assert me.admitted == set()


def test_a_refusal_is_no_longer_than_a_goodbye_may_be() -> None:
    """Whoever expels a member may give a reason of any length that fits into an expulsion."""
    refusing = SimpleNamespace(check=lambda peer, shown: no("you were expelled: " + "x" * 256))
    me, ports = handshake(refusing)
    assert not me.hello(OTHER, Hello(PROTOCOL, SWARM, "volunteer/0"))
    (goodbye,) = ports.messages()
    assert decode_message(encode_message(goodbye)) == goodbye


@pytest.mark.parametrize("greets", [True, False])
def test_who_names_no_swarm_gets_the_manifest_and_is_not_admitted(greets: bool) -> None:
    made, ports = handshake(greets=lambda _: greets)
    assert not made.hello(OTHER, Hello(PROTOCOL, None, "volunteer/9"))
    (told,) = ports.messages()
    assert isinstance(told, Hello)
    assert (told.swarm, told.manifest, told.signature) == (SWARM, b"manifest", bytes(64))
    assert not made.admitted
    assert not made.early


def test_the_manifest_shows_a_credential_only_to_whom_we_greet() -> None:
    """An inviter's ticket is for the inviter alone, which is the only one that we greet."""
    vouching = SimpleNamespace(proof=lambda peer: b"ticket")
    for greets, shown in ((True, b"ticket"), (False, b"")):
        made, ports = handshake(vouching, greets=lambda _: greets)  # noqa: B023
        made.hello(OTHER, Hello(PROTOCOL, None, "volunteer/9"))
        assert [message.admission for message in ports.messages()] == [shown]


def test_a_hello_says_where_we_see_the_peer() -> None:
    made, ports = handshake(sees=lambda _: ("11.0.0.1", 7))
    made.greet(OTHER)
    (hello,) = ports.messages()
    assert decode_message(encode_message(hello)) == hello
    assert hello.seen == ("11.0.0.1", 7)


def test_on_a_link_the_manifest_is_told_once_and_one_goodbye_heard() -> None:
    """A question of sixty bytes would else bring kilobytes as often as it is asked, and each
    goodbye is a line in the log, whose files are few."""
    made, ports = handshake()
    for links in (1, 2):
        for _ in range(3):
            made.hello(OTHER, Hello(PROTOCOL, None, "volunteer/0"))
        assert [made.parts(OTHER) for _ in range(3)] == [True, False, False]
        assert len(ports.sent) == links
        made.gone(OTHER)


# --- an inviter that is reached through a relay --------------------------------------------------


def test_a_relay_is_neither_greeted_nor_admitted_before_somebody_has_vouched_for_us() -> None:
    """Admitted, it would be sent records, behind which our Hello is never read."""
    vouched = False
    made, ports = handshake(greets=lambda peer: vouched or peer != OTHER)
    hello = Hello(PROTOCOL, SWARM, "test")
    made.greet(OTHER)
    assert not made.hello(OTHER, hello)
    assert (ports.sent, made.admitted) == ([], set())
    made.gone(OTHER)
    assert made.early == {}
    assert not made.hello(OTHER, hello)
    vouched = True
    made.greet(OTHER)
    assert made.hello(OTHER, made.early.pop(OTHER))
    assert [type(message) for message in ports.messages()] == [Hello]
    assert made.admitted == {OTHER}


# --- newer programs are told, and nothing follows from it -------------------------------------


def hello_of(client: str, protocol: int = 3) -> Hello:
    return Hello(protocol, SWARM, client)


def test_it_is_said_once_and_counted_after_that() -> None:
    newer = NewerPrograms("volunteer/0.9.0", 3)
    heard = [newer.heard(peer(n), hello_of("volunteer/0.10.2")) for n in range(3)]
    assert heard == [True, False, False]
    assert not newer.heard(peer(0), hello_of("volunteer/0.10.2")), "it has come back"
    assert newer.words == "3 members report a newer program than this one, such as version 0.10.2"


def test_a_newer_protocol_counts_whatever_the_version_is() -> None:
    newer = NewerPrograms("volunteer/0.9.0", 3)
    assert newer.heard(peer(1), hello_of("something else", 4))
    assert newer.words == "1 member reports a newer program than this one, such as protocol 4"


@pytest.mark.parametrize(
    "client",
    ["volunteer/0.9.0", "volunteer/0.8.9", "other/1.0.0", "volunteer/1.0.0\x1b[2J", "volunteer/1"],
)
def test_older_ones_and_words_of_another_form_are_no_news(client: str) -> None:
    newer = NewerPrograms("volunteer/0.9.0", 3)
    assert not newer.heard(peer(1), hello_of(client, 2))
    assert newer.words == ""


def test_many_identities_take_a_bounded_room() -> None:
    newer = NewerPrograms("volunteer/0.9.0", 3)
    for number in range(2 * MAX_MEMBERS):
        newer.heard(peer(number), hello_of("volunteer/1.0.0"))
    assert newer.words.startswith(f"{MAX_MEMBERS} members report")
