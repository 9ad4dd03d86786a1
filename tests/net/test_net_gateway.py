"""Questions to a router that is a socket of this machine; PCP: what is asked and answered."""

import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from client.net import gateway
from client.net.gateway import NONCE, WAITS_S, Mapped, MappingRefused, ask_mapping, read_mapping
from client.net.upnp import ABOUT

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


def answer(
    *,
    result: int = 0,
    lease: bytes = struct.pack(">I", 3600),
    nonce: bytes = NONCE,
    protocol: int = 6,
    own: int = 4001,
    outer: int = 9000,
) -> bytes:
    """What a router says, as its document has it (RFC 6887, sections 7.2 and 11.1)."""
    head = struct.pack(">BBBB4sI12x", 2, 0x81, 0, result, lease, 9)
    host = bytes.fromhex("2a11" + "00" * 13 + "01")
    return head + struct.pack(">12sB3xHH16s", nonce, protocol, own, outer, host)


class Router:
    """One that speaks PCP, on loopback; the requests are kept."""

    def __init__(self, opened: trio.socket.SocketType) -> None:
        self.socket, self.requests = opened, list[bytes]()
        self.result, self.says = 0, True

    async def serve(self) -> None:
        while True:
            data, sender = await self.socket.recvfrom(100)
            self.requests.append(data)
            if self.says:
                await self.socket.sendto(b"noise", sender)
                await self.socket.sendto(answer(result=self.result, lease=data[4:8]), sender)


@pytest.fixture
async def router(monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery) -> AsyncIterator[Router]:
    with trio.socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as opened:
        await opened.bind(("::1", 0))
        line = socket.if_nametoindex("lo")
        monkeypatch.setattr(gateway, "PCP_PORT", opened.getsockname()[1])
        monkeypatch.setattr(gateway, "default_gateway6", lambda: ("::1", line))
        monkeypatch.setattr(gateway, "reachable_hosts", lambda _: ["fd00::1", "::1"])
        monkeypatch.setattr(gateway, "is_global", lambda host: host != "fd00::1")
        made = Router(opened)
        nursery.start_soon(made.serve)
        yield made


async def test_a_hole_in_a_firewall_is_asked_for_from_an_address_that_lasts_and_closed(
    router: Router,
) -> None:
    mapped = await gateway.ask("pinhole", 4001, 4001, 600)
    assert (mapped.port, mapped.lease_s) == (9000, 600)
    (request,) = router.requests
    assert request[8:24] == bytes(15) + b"\1", "it names the address that it comes from"
    assert struct.unpack(">HH", request[40:44]) == (4001, 4001)
    await gateway.end("pinhole", 4001, 4001)
    assert router.requests[-1][4:8] == bytes(4), "a lease of no seconds ends it"
    router.result = 2
    with pytest.raises(MappingRefused, match="it refuses with code 2"):
        await gateway.ask("pinhole", 4001, 4001, 600)
    await gateway.end("pinhole", 4001, 4001)


async def test_a_router_that_says_nothing_is_asked_several_times_and_given_up(
    router: Router, autojump_clock: MockClock
) -> None:
    router.says, began = False, trio.current_time()
    with pytest.raises(MappingRefused, match="no answer from the router"):
        await gateway.ask("pinhole", 4001, 4001, 600)
    assert trio.current_time() == pytest.approx(began + sum(WAITS_S))
    assert len(router.requests) == len(WAITS_S)


async def test_a_router_that_cannot_be_asked_is_named(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(words: str) -> None:
        with pytest.raises(MappingRefused, match=words):
            await gateway.ask("pinhole", 4001, 4001, 600)

    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as closed:
        closed.bind(("::1", 0))
        monkeypatch.setattr(gateway, "PCP_PORT", closed.getsockname()[1])
    await refused("the router: Connection refused")
    monkeypatch.setattr(gateway, "reachable_hosts", lambda _: ["2a11::9"])
    await refused("the router: Cannot assign requested address")
    monkeypatch.setattr(gateway, "reachable_hosts", lambda _: ["fd00::1"])
    await refused("no IPv6 address of the internet")
    monkeypatch.setattr(gateway, "default_gateway6", lambda: None)
    await refused("address of the router is not known")


def test_pcp_as_its_document_says() -> None:
    request = ask_mapping("2a11::2", 4001, 3600)
    assert len(request) == 60
    assert request[:8].hex() == "0201000000000e10"
    assert request[8:24].hex() == "2a11" + "00" * 13 + "02"
    assert request[24:36] == NONCE
    assert request[36:44].hex() == "060000000fa10fa1"
    assert request[44:] == bytes(16)
    assert read_mapping(answer(), 4001) == Mapped("2a11::1", 9000, 3600)
    with pytest.raises(MappingRefused, match="NAT-PMP only"):
        read_mapping(b"\0\x81\0\1" + bytes(8), 4001)


@pytest.mark.parametrize(
    "data",
    [
        b"", answer()[:59], answer(nonce=bytes(12)), answer(protocol=17), answer(own=4009),
        answer(outer=0), b"\3" + answer()[1:], answer()[:1] + b"\x01" + answer()[2:],
    ],
)  # fmt: skip
def test_what_is_no_answer_of_pcp(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_mapping(data, 4001)


def _changed(place: int, byte: int) -> bytes:
    return answer()[:place] + bytes([byte]) + answer()[place + 1 :]


@given(st.binary(max_size=1100) | st.builds(_changed, st.integers(0, 59), st.integers(0, 255)))
def test_hostile_bytes_are_an_answer_a_refusal_or_nothing(data: bytes) -> None:
    with suppress(ValueError, MappingRefused):
        assert isinstance(read_mapping(data, 4001), Mapped)


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
