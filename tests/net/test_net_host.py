"""Strangers at the door: what arrives before, during and instead of a handshake."""

import os
import socket
import sys
from functools import partial

import pytest
import trio

from client.net import host as host_module
from client.net.addresses import Destination, parse_destination
from client.net.connection_limiter import HostLimits
from client.net.errors import DialError, TurnedAway
from client.net.host import Connection, Host
from client.net.transport import ByteStream
from protocol.ids import PeerId
from tests.support.cli_process import apart
from tests.support.loopback import Dial, Hosts, dialled


def token(text: bytes) -> bytes:
    return bytes([len(text) + 1]) + text + b"\n"


HELLO = token(b"/multistream/1.0.0")
NOISE = HELLO + token(b"/noise")
HOSTILE = {
    "nothing": b"",
    "one byte": b"\x13",
    "only the greeting": HELLO,
    "a protocol that is not UTF-8": HELLO + b"\x05\xff\xfe\xfd\xfc\n",
    "length prefix of 2**63": b"\xff" * 9 + b"\x7f" + b"x" * 4096,
    "length prefix of 4 GiB": HELLO + b"\x80\x80\x80\x80\x10" + b"x" * 65536,
    "plaintext": HELLO + token(b"/plaintext/2.0.0") + b"\x00" * 64,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 512,
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "endless ls": HELLO + token(b"ls") * 40000,
    "noise, then garbage": NOISE + b"\x00\x20" + b"\x99" * 32,
    "noise, then an empty message": NOISE + b"\x00\x00",
    "noise, then half a message": NOISE + b"\xff\xff" + b"\x01" * 100,
    "noise, then two garbled messages": NOISE + (b"\x00\x20" + b"\x07" * 32) * 3,
    "noise, then the low-order point": NOISE + b"\x00\x20" + b"\0" * 32 + b"\x00\x40" + b"\0" * 64,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
async def test_the_host_outlives_hostile_bytes(hosts: Hosts, dial: Dial, data: bytes) -> None:
    limits = HostLimits(handshake_s=0.3)
    async with hosts(limits=limits) as host, hosts() as honest:
        async with dial(host.addresses[0]) as stream:
            try:
                await stream.send_all(data)
                await stream.send_eof()
                while await stream.receive_some():
                    pass
            except trio.BrokenResourceError:
                pass
        connection = await dialled(honest, host.addresses[0])
        assert connection.peer == host.peer_id
        assert set(host.refused) <= {"handshake-failed", "handshake-slow"}
        assert host.refused.total() == 1


async def test_a_slow_handshake_is_cut_off(hosts: Hosts, dial: Dial) -> None:
    async with hosts(limits=HostLimits(handshake_s=0.2)) as host:
        async with dial(host.addresses[0]) as stream:
            greeting = await stream.receive_some()
            assert greeting == HELLO  # and then we say nothing
            assert await stream.receive_some() == b""
        assert host.refused["handshake-slow"] == 1


async def test_live_connections_are_capped_and_freed(hosts: Hosts) -> None:
    async with (
        hosts(limits=HostLimits(connections=3)) as host,
        hosts() as a,
        hosts() as b,
        hosts() as c,
        hosts() as d,
    ):
        first = await dialled(a, host.addresses[0])
        await dialled(b, host.addresses[0])
        await dialled(c, host.addresses[0])
        with pytest.raises(TurnedAway, match="too many"):
            await dialled(d, host.addresses[0])
        assert host.refused["too-many-connections"] == 1
        first.close("make room")
        while len(host.limiter._inbound) == 3:
            await trio.sleep(0.01)
        await dialled(d, host.addresses[0])
        while first._channel._buffer:  # whoever still knows it does not keep what it has read
            await trio.sleep(0.01)


async def test_a_connection_that_nobody_lets_in_costs_no_task(
    hosts: Hosts, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, serve = list[ByteStream](), Host._serve

    async def note(host: Host, stream: ByteStream) -> None:
        served.append(stream)
        await serve(host, stream)

    monkeypatch.setattr(Host, "_serve", note)
    async with hosts(limits=HostLimits(connections=1)) as host, hosts() as honest:
        await dialled(honest, host.addresses[0])
        for _ in range(20):
            async with dial(host.addresses[0]) as stream:
                assert await stream.receive_some() == b""
        assert len(served) == 1
        assert host.refused == {"too-many-connections": 20}


async def test_an_exception_in_a_handler_ends_its_connection_only(hosts: Hosts) -> None:
    async def broken(connection: Connection) -> None:
        async def work() -> None:
            await trio.lowlevel.checkpoint()
            raise KeyError("a bug")

        await connection.run(work)

    async with hosts(broken) as host, hosts() as peer:
        for failures in (1, 2):
            await dialled(peer, host.addresses[0])
            while host.refused["handler-failed"] < failures:
                await trio.sleep(0.01)


async def test_dialling_says_what_went_wrong(hosts: Hosts) -> None:
    async with hosts() as host, hosts() as other:
        here = host.addresses[0]
        with pytest.raises(DialError, match="this very peer"):
            await dialled(host, here)
        wrong = here.replace(host.peer_id, other.peer_id)
        third = "12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5"
        with pytest.raises(DialError, match="PeerIDMismatchesPubkey"):
            await dialled(other, here.replace(host.peer_id, third))
        with pytest.raises(DialError, match="this very peer"):
            await dialled(other, wrong)
        free = f"/ip4/127.0.0.1/tcp/1/p2p/{third}"
        with pytest.raises(DialError, match="refused") as nobody:
            await dialled(host, free)
        assert not isinstance(nobody.value, TurnedAway)


async def test_a_silent_server_is_given_up(hosts: Hosts) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, hosts(limits=HostLimits(dial_s=0.2)) as host:
        third = "12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5"
        port = listener.socket.getsockname()[1]
        with pytest.raises(DialError, match="no answer within"):
            await dialled(host, f"/ip4/127.0.0.1/tcp/{port}/p2p/{third}")


@pytest.mark.slow
def test_importing_the_network_prints_nothing_and_brings_what_it_uses(tmp_path: object) -> None:
    code = (
        "import sys, logging, client.net.libp2p_network\n"
        "logging.getLogger('libp2p.x').warning('boo')\n"
        "sys.exit(bool({'torch', 'httpx', 'dns', 'zeroconf'} & sys.modules.keys()))"
    )
    done = apart(sys.executable, "-c", code, LIBP2P_DEBUG="DEBUG", TMPDIR=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not os.listdir(str(tmp_path))


async def test_a_machine_that_moves_has_other_addresses(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosts() as host:
        port = parse_destination(host.addresses[0]).port
        monkeypatch.setattr("client.net.host.reachable_hosts", lambda ip: ["192.0.2.7"])
        assert host.addresses == (f"/ip4/192.0.2.7/tcp/{port}/p2p/{host.peer_id}",)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("expected", [True, False])
async def test_two_that_dial_each_other_meet_in_one_connection(
    hosts: Hosts, expected: bool
) -> None:
    ports = free_port(), free_port()
    met, missed = list[Connection](), list[str]()

    async def handler(connection: Connection) -> None:
        met.append(connection)
        await connection.run(trio.sleep_forever)

    async with hosts(handler) as a, hosts(handler) as b, trio.open_nursery() as nursery:

        async def meet(host: Host, peer: PeerId, own: int, *, first: bool) -> None:
            target = Destination("ip4", "127.0.0.1", ports[1 - own], peer)
            try:
                await host.meet(target, ports[own], first=first)
            except DialError as error:
                missed.append(str(error))

        third = PeerId("12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5")
        nursery.start_soon(partial(meet, a, b.peer_id, 0, first=True))
        nursery.start_soon(partial(meet, b, a.peer_id if expected else third, 1, first=False))
        while len(met) + len(missed) < 2:
            await trio.sleep(0.01)
        for connection in met:
            connection.close("enough")
    if expected:
        assert {(one.dialled, one.punched) for one in met} == {(True, True), (False, True)}
        assert {one.peer for one in met} == {a.peer_id, b.peer_id}
    else:
        assert any("somebody else came" in words for words in missed)


async def test_who_does_not_come_is_not_met(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "MEET_S", 0.1)
    third = PeerId("12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5")
    async with hosts() as a:
        target = Destination("ip4", "127.0.0.1", free_port(), third)
        with pytest.raises(DialError, match="nobody came in time"):
            await a.meet(target, free_port(), first=True)
