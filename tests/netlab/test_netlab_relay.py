"""Volunteers behind routers that let nobody in train together through a public relay."""

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from client.lab.local_swarm import LocalSwarm, Member
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from protocol.address import Address
from protocol.ids import PeerId
from protocol.invite import parse_swarm_file
from tests.netlab.inside import inside
from tests.netlab.internet import Internet, Place, why_not
from tests.netlab.routers import Router
from tests.support import e2e_local
from tests.support.cases import usual
from tests.support.e2e_local import killed_at_the_end, volunteer

reason = why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(reason is not None, reason=f"no laboratory here: {reason}"),
]
PORT = 4001
PATIENCE_S = 180.0
CANARY = b"the canary sings at 5:17"
MODEL = ("--layers", "2", "--width", "32", "--heads", "2", "--context", "16", "--stages", "2")
RUN = ("--microbatch", "2", "--microbatches", "4", "--no-measure")
ETH_P_ALL = 3


@contextmanager
def swarm_of(
    net: Internet, folder: Path, founder: str, relays: tuple[str, ...], steps: int, *more: str
) -> Iterator[LocalSwarm]:
    """Found a swarm on a text that only its founder has, with relays as the members to call."""
    book = folder / "book.txt"
    book.write_bytes(b"".join(b"%s %d\n" % (CANARY, number) for number in range(2000)))
    swarm = folder / "x.swarm"
    flags = (*MODEL, *RUN, "--steps", str(steps), "--name", "far", "--out", str(swarm), *more)
    volunteer(folder / founder, "create", "--data", str(book), *flags).check_returncode()
    book.unlink()  # the founder keeps a copy in its home, nobody else has one
    peers = [Address("ip4", net.public(relay), PORT, identity(folder / relay)) for relay in relays]
    swarm.write_text(str(replace(parse_swarm_file(swarm.read_text()), peers=tuple(peers))))
    with killed_at_the_end(folder) as processes:
        yield processes


def identity(home: Path) -> PeerId:
    return ensure_identity(make_private(home_folders(home).data)).peer


def start(net: Internet, swarm: LocalSwarm, host: str, *, relay_only: bool = False) -> Member:
    flags = ("--listen-port", str(PORT)) if relay_only else ("--threads", "1")
    if relay_only:
        flags = (*flags, "--relay", "20MB/s")
    return swarm.start(host, flags, within=net.command(host), relay_only=relay_only)


def wait_for(swarm: LocalSwarm, what: str, condition: Callable[[], bool]) -> None:
    def look() -> bool | None:
        with suppress(AttributeError):  # a member does not answer yet
            return condition() or None
        return None

    e2e_local.wait_for(look, what, swarm.members, PATIENCE_S)


def started_relay(net: Internet, swarm: LocalSwarm, host: str = "open") -> Member:
    relay = start(net, swarm, host, relay_only=True)
    wait_for(swarm, "the relay answers", lambda: relay.snapshot().state == "relaying")
    return relay


def goes_on(swarm: LocalSwarm, *members: Member) -> None:
    before = members[0].snapshot().step
    wait_for(swarm, "goes on", lambda: members[0].snapshot().step > before + 3)
    for member in members:
        assert member.snapshot().counters.doubled_microbatches == 0


def relay_of(member: Member, other: Member) -> str:
    """Return the peer through which a member is linked with another one."""
    there = other.snapshot()
    links = {one.peer: one for one in member.snapshot().peers}
    link = links.get(there.peer)
    return link.relay if link is not None and link.state == "connected" else "not linked"


@contextmanager
def captured(net: Internet, host: str) -> Iterator[list[bytes]]:
    """Everything that comes to a host or leaves it, packet by packet."""
    packets: list[bytes] = []

    def made() -> socket.socket:
        return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))

    with inside(net, host, made) as tap:
        tap.setsockopt(socket.SOL_SOCKET, 33, 64 * 2**20)  # SO_RCVBUFFORCE
        tap.settimeout(0.2)
        over = threading.Event()

        def read() -> None:
            while not over.is_set():
                with suppress(TimeoutError):
                    packets.append(tap.recv(65536))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield packets
        finally:
            over.set()
            reader.join()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vol") as name:
        yield Path(name)


@pytest.mark.parametrize(
    ("one", "other"),
    usual(1, [(Router.PORT_RESTRICTED, Router.SYMMETRIC), (Router.SYMMETRIC, Router.SYMMETRIC)]),
)
def test_two_behind_routers_train_through_a_relay_that_sees_nothing(
    folder: Path, one: Router, other: Router
) -> None:
    places = {"open": Place(), "a": Place(one), "b": Place(other)}
    with (
        Internet(places, rtt_ms=20) as net,
        swarm_of(net, folder, "a", ("open",), steps=4) as swarm,
        captured(net, "open") as packets,
    ):
        relay = started_relay(net, swarm)
        a, b = start(net, swarm, "a"), start(net, swarm, "b")
        wait_for(swarm, "trained", lambda: all(m.snapshot().state == "done" for m in (a, b)))
        for member, partner in ((a, b), (b, a)):
            assert relay_of(member, partner) == relay.snapshot().peer
            assert member.snapshot().relay.through == [relay.snapshot().peer]
            assert member.snapshot().counters.doubled_microbatches == 0
        assert relay.snapshot().relay.passed_bytes > 100_000
        assert relay.snapshot().seats == []
        maps = Path(f"/proc/{relay.process.pid}/maps").read_text()
        assert "libtorch" not in maps
    traffic = b"".join(packets)
    assert len(traffic) > 200_000  # the text went through, among others
    assert CANARY not in traffic
    assert CANARY.decode().encode("utf-16-le") not in traffic, "as tokens"
    assert (folder / "b").exists()


def test_two_whose_routers_keep_their_ports_become_direct_while_they_train(folder: Path) -> None:
    home = Place(Router.PORT_RESTRICTED)
    with (
        Internet({"open": Place(), "a": home, "b": home}, rtt_ms=20) as net,
        swarm_of(net, folder, "a", ("open",), steps=100_000) as swarm,
    ):
        started_relay(net, swarm)
        a, b = start(net, swarm, "a"), start(net, swarm, "b")
        wait_for(swarm, "direct", lambda: relay_of(a, b) == relay_of(b, a) == "")
        links = {one.peer: one for one in a.snapshot().peers}
        assert links[b.snapshot().peer].punched
        goes_on(swarm, a, b)
        for member in (a, b):
            told = [event.words for event in member.new_events()]
            assert not [words for words in told if " is down" in words]


@pytest.mark.long
def test_who_is_behind_a_router_invites_somebody_who_is_behind_another_one(folder: Path) -> None:
    """Members vouch for each other, so the newcomer has to show its invite to the inviter, through
    a relay that would refuse it."""
    places = {"open": Place(), "a": Place(Router.SYMMETRIC), "b": Place(Router.PORT_RESTRICTED)}

    def invited(inviter: str, newcomer: str) -> LocalSwarm:
        path = folder / f"{newcomer}.swarm"
        volunteer(folder / inviter, "invite", "--once", "--out", str(path)).check_returncode()
        return LocalSwarm(path, folder, folder / "logs")

    with (
        Internet(places, rtt_ms=20) as net,
        swarm_of(net, folder, "open", ("open",), 3, "--private") as swarm,
    ):
        relay = started_relay(net, swarm)
        with invited("open", "a") as first:
            a = start(net, first, "a")
            wait_for(first, "a is relayed", lambda: a.snapshot().relay.through != [])
            with invited("a", "b") as second:
                peers = parse_swarm_file((folder / "b.swarm").read_text()).peers
                assert peers[0].relay == relay.snapshot().peer
                b = start(net, second, "b")
                wait_for(second, "a link", lambda: relay_of(b, a) == relay.snapshot().peer)
                wait_for(second, "b is a member", lambda: b.snapshot().relay.through != [])
                told = [event.words for event in b.new_events()]
                assert not [words for words in told if " is down" in words]
