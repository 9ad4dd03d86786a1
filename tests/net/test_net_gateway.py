"""Questions to a router that is a socket of this machine."""

import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from client.net import gateway
from client.net.gateway import WAITS_S, MappingRefused, _answer, _connected
from client.net.pcp import Mapped
from client.net.upnp import ABOUT


@pytest.fixture
async def router() -> AsyncIterator[trio.socket.SocketType]:
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        await opened.bind(("127.0.0.1", 0))
        yield opened


def only_yes(data: bytes) -> str:
    if data != b"yes":
        raise ValueError(data)
    return "yes"


async def test_a_router_that_says_nothing_is_asked_several_times_and_given_up(
    router: trio.socket.SocketType, autojump_clock: MockClock
) -> None:
    asking = await _connected(socket.AF_INET, router.getsockname())
    with asking, pytest.raises(MappingRefused, match="no answer from the router"):
        await _answer(asking, b"?", only_yes)
    assert trio.current_time() == pytest.approx(sum(WAITS_S))
    for _ in WAITS_S:
        assert await router.recv(10) == b"?"


async def test_what_is_no_answer_is_ignored(router: trio.socket.SocketType) -> None:
    with await _connected(socket.AF_INET, router.getsockname()) as asking:
        for words in (b"noise", b"yes"):
            await router.sendto(words, asking.getsockname())
        assert await _answer(asking, b"?", only_yes) == "yes"


async def test_a_router_without_such_a_service_is_named() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind(("127.0.0.1", 0))
        place = closed.getsockname()
    asking = await _connected(socket.AF_INET, place)
    with asking, pytest.raises(MappingRefused, match="the router: Connection refused"):
        await _answer(asking, b"?", only_yes)


ROUTES = """Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth0 0000A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0
eth0 00000000 0100A8C0 0001 0 0 0 00000000 0 0 0
eth0 00000000 FE00A8C0 0003 0 0 0 00000000 0 0 0
"""
ROUTES6 = """{other} 00 {zero} 00 fe800000000000000000000000000001 0 0 0 00000003 lo
{zero} 40 {zero} 00 fe800000000000000000000000000002 0 0 0 00000003 lo
{zero} 00 {zero} 00 fe800000000000000000000000000003 0 0 0 00000001 lo
{zero} 00 {zero} 00 fe800000000000000000000000000004 0 0 0 00450003 lo
""".format(zero="0" * 32, other="2a11" + "0" * 28)


def test_the_router_is_that_of_the_way_to_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("_ROUTES", ROUTES), ("_ROUTES6", ROUTES6)):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(gateway, name, tmp_path / name)
    line = socket.if_nametoindex("lo")
    assert gateway.routers() == ("192.168.0.254", ("fe80::4", line))
    for name in ("_ROUTES", "_ROUTES6"):
        (tmp_path / name).write_text("what is this\n" * 2)
    assert gateway.routers() == (None, None)


class Router:
    """One that maps ports, on loopback; the requests are kept."""

    def __init__(self, opened: trio.socket.SocketType) -> None:
        self.socket, self.requests = opened, list[bytes]()
        self.result = 0

    async def serve(self) -> None:
        while True:
            data, sender = await self.socket.recvfrom(100)
            self.requests.append(data)
            await self.socket.sendto(self.answer(data), sender)

    def answer(self, data: bytes) -> bytes:
        # version, operation, lease, client; nonce, protocol, ports
        head = struct.pack(">BBBB4sI12x", 2, 0x81, 0, self.result, data[4:8], 0)
        return head + data[24:40] + data[40:42] + (9000).to_bytes(2, "big") + data[44:]


async def test_without_a_router_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "default_gateway6", lambda: None)
    with pytest.raises(MappingRefused, match="address of the router is not known"):
        await gateway.ask("pinhole", 4001, 4001, 600)
    monkeypatch.setattr(gateway, "default_gateway6", lambda: ("::1", 1))
    monkeypatch.setattr(gateway, "reachable_hosts", lambda _: ["fd00::1"])
    with pytest.raises(MappingRefused, match="no IPv6 address of the internet"):
        await gateway.ask("pinhole", 4001, 4001, 600)


async def test_a_hole_in_a_firewall_is_asked_for_from_an_address_that_lasts_and_closed(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    with trio.socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as opened:
        await opened.bind(("::1", 0))
        router, line = Router(opened), socket.if_nametoindex("lo")
        monkeypatch.setattr(gateway, "PCP_PORT", opened.getsockname()[1])
        monkeypatch.setattr(gateway, "default_gateway6", lambda: ("::1", line))
        monkeypatch.setattr(gateway, "reachable_hosts", lambda _: ["fd00::1", "::1"])
        monkeypatch.setattr(gateway, "is_global", lambda host: host == "::1")
        nursery.start_soon(router.serve)
        mapped = await gateway.ask("pinhole", 4001, 4001, 600)
        assert (mapped.port, mapped.lease_s) == (9000, 600)
        (request,) = router.requests
        assert request[8:24] == bytes(15) + b"\1", "it names the address that it comes from"
        assert struct.unpack(">HH", request[40:44]) == (4001, 4001)
        await gateway.end("pinhole", 4001, 4001)
        assert router.requests[-1][4:8] == bytes(4), "a lease of no seconds ends it"
        router.result = 2
        with pytest.raises(MappingRefused, match="its owner does not allow mappings"):
            await gateway.ask("pinhole", 4001, 4001, 600)
        await gateway.end("pinhole", 4001, 4001)


async def test_a_router_that_cannot_be_asked_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "default_gateway6", lambda: ("ff00::1", 0))
    monkeypatch.setattr(gateway, "_own_host6", lambda: "192.0.2.1")
    with pytest.raises(MappingRefused, match="the router: "):
        await gateway.ask("pinhole", 4001, 4001, 600)


LIBRARY = """
class UPnP:
    lanaddr = "192.168.0.2"

    def discover(self):
        {discover}

    def selectigd(self):
        pass

    def externalipaddress(self):
        return "{outer}"

    def addportmapping(self, *asked):
        print(*asked, file=open("{done}", "a"))
        {maps}

    def deleteportmapping(self, *which):
        print(*which, file=open("{done}", "a"))
        raise Exception("NoSuchEntry")
"""
"""What miniupnpc is to us."""


@pytest.fixture
def upnp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Replaces the library; returns the file of what the router is told."""

    def replaced(**changes: str) -> Path:
        done = tmp_path / "done"
        usual = {"discover": "pass", "outer": "203.0.113.7", "maps": "pass", "done": str(done)}
        (tmp_path / "miniupnpc.py").write_text(LIBRARY.format(**usual | changes))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return done

    return replaced


async def test_upnp_maps_a_port_and_gives_it_back(upnp: Callable[..., Path]) -> None:
    done = upnp()
    assert await gateway.ask("upnp", 4001, 4002, 600) == Mapped("203.0.113.7", 4002, 600)
    await gateway.end("upnp", 4001, 4002)
    assert done.read_text().splitlines() == [
        f"4002 TCP 192.168.0.2 4001 {ABOUT}  600",
        "4002 TCP",
    ]


@pytest.mark.parametrize(
    ("router", "words", "conflict"),
    [
        ({"discover": "raise Exception('Success')"}, "no router with UPnP answers", False),
        ({"outer": ""}, "no router with UPnP answers", False),
        ({"maps": "raise Exception('ConflictInMappingEntry')"}, "ConflictInMappingEntry", True),
        ({"maps": "raise Exception('OnlyPermanentLeases')"}, "OnlyPermanentLeases", False),
        ({"maps": "import os; os.kill(os.getpid(), 11)"}, "no answer from the router", False),
        ({"discover": "bytearray(1 << 30)"}, "no router with UPnP answers", False),
    ],
)
async def test_what_upnp_refuses_is_said_and_no_router_harms_the_node(
    upnp: Callable[..., Path], router: dict[str, str], words: str, conflict: bool
) -> None:
    upnp(**router)
    with pytest.raises(MappingRefused, match=words) as refused:
        await gateway.ask("upnp", 4001, 4002, 600)
    assert refused.value.conflict is conflict


async def test_a_router_that_drips_takes_no_thread_of_the_node(
    upnp: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    upnp(discover="import time; time.sleep(60)")
    monkeypatch.setattr(gateway, "UPNP_S", 0.5)
    with pytest.raises(MappingRefused, match="no answer from the router"):
        await gateway.ask("upnp", 4001, 4002, 600)
    assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
