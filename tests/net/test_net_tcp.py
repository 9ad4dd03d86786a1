"""Ports that dials share, addresses that cannot be listened on, and words for what fails."""

import errno
import socket
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from client.net.errors import DialError, ListenError, NetworkError, NoSuchFamily, PortInUse
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
        (errno.EADDRINUSE, "0.0.0.0", PortInUse, "port 7 on 0.0.0.0 is in use"),
        (errno.EAFNOSUPPORT, "0.0.0.0", NoSuchFamily, "no addresses like 0.0.0.0"),
        (errno.EADDRNOTAVAIL, "::", NoSuchFamily, "no addresses like ::"),
        (
            errno.EADDRNOTAVAIL,
            "203.0.113.7",
            ListenError,
            "cannot listen on 203.0.113.7 port 7: no",
        ),
        (errno.EACCES, "::", ListenError, "cannot listen on :: port 7: no"),
    ],
)
async def test_why_an_address_cannot_be_listened_on_is_said(
    monkeypatch: pytest.MonkeyPatch, number: int, host: str, kind: type[NetworkError], words: str
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(trio, "open_tcp_listeners", fail)
    with pytest.raises(ListenError, match=words) as refused:
        async with Tcp().listen(Address("ip6" if ":" in host else "ip4", host, 7)):
            raise NotImplementedError
    assert type(refused.value) is kind


async def test_a_dial_that_fails_names_the_address_and_the_cause() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = Address("ip4", "127.0.0.1", closed.getsockname()[1])
    for opening in (Tcp().dial(address), Tcp().dial(address, 0)):
        with pytest.raises(DialError, match=f"{address}: Connection refused"):
            async with opening:
                raise NotImplementedError
