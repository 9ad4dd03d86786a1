"""Ports that dials share, addresses that cannot be listened on, and words for what fails."""

import errno
import socket
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from client.net.errors import AddressError, DialError, ListenError, NetworkError, PortInUse
from client.net.tcp import SHARED_DIALS, Tcp
from protocol.address import Address

FAR = [f"8.8.{n}.8" for n in range(SHARED_DIALS + 2)]


class Dials:
    """A transport whose connections are written down, and come from a port of the system's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of, self.made = Tcp(), list[tuple[int | None, str]]()
        self.errors: list[OSError] = []
        monkeypatch.setattr(self.of, "_connect_from", self._connect_from)

    async def _connect_from(self, own_port: int | None, host: str, port: int) -> Any:
        await trio.lowlevel.checkpoint()
        self.made.append((own_port, host))
        if self.errors:
            raise self.errors.pop()
        return SimpleNamespace(socket=SimpleNamespace(getsockname=lambda: ("", own_port or 5555)))

    async def dial(self, host: str) -> int | None:
        """Dial a host; return the port that it left from: 0 for any that others may have, too."""
        kind = "ip6" if ":" in host else "ip4"
        await self.of._connect(Address(kind, host, 4001))
        return self.made[-1][0]


async def test_the_first_dials_to_a_few_machines_of_the_internet_leave_from_one_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dials = Dials(monkeypatch)
    assert await dials.dial("192.168.0.7") is None, "no router is between"
    assert await dials.dial(FAR[0]) == 0, "the system chooses"
    assert [await dials.dial(host) for host in FAR[1:3]] == [5555, 5555]
    assert await dials.dial(FAR[0]) == 0, "a second dial to one machine"
    assert await dials.dial("2a11::1") == 0, "routers map ports of IPv4 only"
    for host in FAR[3:SHARED_DIALS]:
        assert await dials.dial(host) == 5555
    assert await dials.dial(FAR[SHARED_DIALS]) == 0, "few are enough"
    dials.of.network_changed()
    assert [await dials.dial(host) for host in FAR[:2]] == [0, 5555]


@pytest.mark.parametrize(
    ("number", "again"),
    [(errno.EADDRINUSE, True), (errno.EADDRNOTAVAIL, True), (errno.ECONNREFUSED, False)],
)
async def test_a_port_that_is_not_free_costs_no_dial(
    monkeypatch: pytest.MonkeyPatch, number: int, again: bool
) -> None:
    dials = Dials(monkeypatch)
    await dials.dial(FAR[0])
    dials.errors = [OSError(number, "no")]
    if again:
        assert await dials.dial(FAR[1]) == 0
    else:
        with pytest.raises(OSError, match="no"):
            await dials.dial(FAR[1])
    assert len(dials.made) == 2 + again


@pytest.mark.parametrize(
    ("number", "host", "kind", "words"),
    [
        (errno.EADDRINUSE, "all", PortInUse, "port 7 is in use"),
        (errno.EACCES, "all", ListenError, "cannot listen on all port 7: Permission denied"),
        (errno.EADDRNOTAVAIL, "::", ListenError, "cannot listen on :: port 7: Cannot assign"),
    ],
)
async def test_why_an_address_cannot_be_listened_on_is_said(
    monkeypatch: pytest.MonkeyPatch, number: int, host: str, kind: type[NetworkError], words: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(socket, "create_server", fail)
    with pytest.raises(ListenError, match=words) as refused:
        async with Tcp().listen(host, 7):
            raise NotImplementedError
    assert type(refused.value) is kind


@pytest.mark.parametrize("error", [ValueError("no dual stack"), OSError(errno.EADDRNOTAVAIL, "no")])
async def test_everywhere_is_ipv4_alone_where_ipv6_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    create = socket.create_server

    def lacks_ip6(address: tuple[str, int], **options: Any) -> socket.socket:
        if "::" in address:
            raise error
        return create(address, **options)

    monkeypatch.setattr(socket, "create_server", lacks_ip6)
    async with Tcp().listen("all", 0) as listener:
        assert [address.host for address in listener.addresses] == ["0.0.0.0"]


@pytest.mark.parametrize(
    ("host", "port"),
    [("127.0.0.1", -1), ("127.0.0.1", 65536), ("localhost", 1), ("", 1), ("fe80::1%lo", 1)],
)
async def test_what_is_no_address_and_port_is_not_listened_on(host: str, port: int) -> None:
    with pytest.raises(AddressError, match="not an IP address and port"):
        async with Tcp().listen(host, port):
            raise NotImplementedError


async def test_a_dial_that_fails_names_the_address_and_the_cause() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = Address("ip4", "127.0.0.1", closed.getsockname()[1])
    with pytest.raises(DialError, match=f"{address}: Connection refused"):
        async with Tcp().dial(address):
            raise NotImplementedError
