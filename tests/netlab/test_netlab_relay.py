"""Volunteers behind routers that let nobody in train together through a public relay."""

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from client.control.snapshot import Snapshot
from client.lab.local_swarm import LocalSwarm
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from protocol.address import Address
from protocol.ids import PeerId
from protocol.invite import parse_swarm_file
from tests.netlab.inside import inside
from tests.netlab.internet import Internet, Place, why_not
from tests.netlab.routers import Router
from tests.support.cases import usual
from tests.support.e2e_local import killed_at_the_end, volunteer
from tests.support.scattered_swarm import PORT, ScatteredSwarm

reason = why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(reason is not None, reason=f"no laboratory here: {reason}"),
]
CANARY = b"the canary sings at 5:17"
MODEL = ("--layers", "2", "--width", "32", "--heads", "2", "--context", "16", "--stages", "2")
RUN = ("--microbatch", "2", "--microbatches", "4", "--no-measure")
ETH_P_ALL = 3


@contextmanager
def swarm_of(
    net: Internet, folder: Path, founder: str, steps: int, *more: str
) -> Iterator[ScatteredSwarm]:
    """Found a swarm on a text that only its founder has, with a relay in the open to call."""
    book = folder / "book.txt"
    book.write_bytes(b"".join(b"%s %d\n" % (CANARY, number) for number in range(2000)))
    swarm = folder / "x.swarm"
    run = ("--steps", str(steps), "--name", "far", "--data", str(book), "--out", str(swarm), *more)
    volunteer(folder / founder, "create", *MODEL, *RUN, *run).check_returncode()
    book.unlink()  # the founder keeps a copy in its home, nobody else has one
    relay = ensure_identity(make_private(home_folders(folder / "open").data)).peer
    peers = (Address("ip4", net.public("open"), PORT, relay),)
    swarm.write_text(str(replace(parse_swarm_file(swarm.read_text()), peers=peers)))
    with killed_at_the_end(folder) as processes:
        yield ScatteredSwarm(processes, net.command, folder)


def start_relay(swarm: ScatteredSwarm) -> PeerId:
    swarm.start("open", "--listen-port", str(PORT), "--relay", "20MB/s", relay_only=True)
    return swarm.wait(lambda seen: seen["open"].state == "relaying", "it relays")["open"].peer


def relay_of(now: Snapshot, other: PeerId) -> str:
    """Return the peer through which a member is linked with another one."""
    link = {one.peer: one for one in now.peers}.get(other)
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
        swarm_of(net, folder, "a", steps=4) as swarm,
        captured(net, "open") as packets,
    ):
        relay = start_relay(swarm)
        swarm.start("a")
        swarm.start("b")
        seen = swarm.wait(lambda seen: all(seen[m].state == "done" for m in "ab"), "trained")
        for member, partner in ("ab", "ba"):
            assert relay_of(seen[member], seen[partner].peer) == relay
            assert seen[member].relay.through == [relay]
            assert seen[member].counters.doubled_microbatches == 0
        assert seen["open"].relay.passed_bytes > 100_000
        assert seen["open"].seats == []
        maps = Path(f"/proc/{swarm.pid('open')}/maps").read_text()
        assert "libtorch" not in maps
    traffic = b"".join(packets)
    assert len(traffic) > 200_000  # the text went through, among others
    assert CANARY not in traffic
    assert CANARY.decode().encode("utf-16-le") not in traffic, "as tokens"
    assert (folder / "b").exists()


def test_two_whose_routers_keep_their_ports_become_direct_while_they_train(folder: Path) -> None:
    home = Place(Router.PORT_RESTRICTED)

    def direct(seen: dict[str, Snapshot]) -> bool:
        a, b = seen["a"], seen["b"]
        return relay_of(a, b.peer) == relay_of(b, a.peer) == ""

    with (
        Internet({"open": Place(), "a": home, "b": home}, rtt_ms=20) as net,
        swarm_of(net, folder, "a", steps=100_000) as swarm,
    ):
        start_relay(swarm)
        swarm.start("a")
        swarm.start("b")
        seen = swarm.wait(direct, "direct")
        assert {link.peer: link for link in seen["a"].peers}[seen["b"].peer].punched
        before = seen["a"].step
        seen = swarm.wait(lambda now: now["a"].step > before + 3, "goes on")
        for member in "ab":
            assert seen[member].counters.doubled_microbatches == 0
            assert not [words for words in swarm.told(member) if " is down" in words]


@pytest.mark.long
def test_who_is_behind_a_router_invites_somebody_who_is_behind_another_one(folder: Path) -> None:
    """Members vouch for each other, so the newcomer has to show its invite to the inviter, through
    a relay that would refuse it."""
    places = {"open": Place(), "a": Place(Router.SYMMETRIC), "b": Place(Router.PORT_RESTRICTED)}

    @contextmanager
    def invited(net: Internet, inviter: str, newcomer: str) -> Iterator[ScatteredSwarm]:
        path = folder / f"{newcomer}.swarm"
        volunteer(folder / inviter, "invite", "--once", "--out", str(path)).check_returncode()
        with LocalSwarm(path, folder, folder / "logs") as swarm:
            yield ScatteredSwarm(swarm, net.command, folder)

    with (
        Internet(places, rtt_ms=20) as net,
        swarm_of(net, folder, "open", 3, "--private") as swarm,
    ):
        relay = start_relay(swarm)
        with invited(net, "open", "a") as first:
            first.start("a")
            a = first.wait(lambda seen: seen["a"].relay.through != [], "a is relayed")["a"].peer
            with invited(net, "a", "b") as second:
                peers = parse_swarm_file((folder / "b.swarm").read_text()).peers
                assert peers[0].relay == relay
                second.start("b")
                second.wait(lambda seen: relay_of(seen["b"], a) == relay, "a link")
                second.wait(lambda seen: seen["b"].relay.through != [], "b is a member")
                assert not [words for words in second.told("b") if " is down" in words]
