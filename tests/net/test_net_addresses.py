"""Where this machine listens and is reached: addresses that last, and names in numbers."""

import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import trio
import trio.testing

from client.net import addresses
from client.net.addresses import (
    MAX_LOOKUPS,
    Destination,
    numeric_host,
    parse_destination,
    reachable_hosts,
)
from client.net.errors import AddressError
from protocol.limits import MAX_ADDRESS_CHARS
from tests.support.protocol_examples import peer

PEER, RELAY = peer(1), peer(2)
LASTING, PASSING, OLD = "2a11::1", "2a11::2", "2a11::3"


def interfaces(monkeypatch: pytest.MonkeyPatch, *lines: Sequence[str]) -> None:
    """Let the machine have these addresses, by line."""
    found = {
        f"line {number}": [SimpleNamespace(address=address) for address in line]
        for number, line in enumerate(lines)
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)


def kernel(monkeypatch: pytest.MonkeyPatch, file: Path, flags: dict[str, int]) -> None:
    """Let the kernel say these flags of IPv6 addresses."""
    lines = [
        f"{int.from_bytes(addresses.ip_address(host).packed, 'big'):032x} 02 40 00 {flag:02x} eth0"
        for host, flag in flags.items()
    ]
    file.write_text("\n".join(lines))
    monkeypatch.setattr(addresses, "_IP6_ADDRESSES", file)


def test_a_host_that_is_named_is_the_one_we_are_reached_at() -> None:
    assert reachable_hosts("192.168.0.7") == ["192.168.0.7"]
    assert reachable_hosts("::1") == ["::1"]


def test_everywhere_is_every_address_but_those_of_this_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interfaces(
        monkeypatch,
        ["127.0.0.1", "::1", "00:11:22:33:44:55"],
        ["192.168.0.7", "fe80::1%eth0", "fe80::2", LASTING],
        ["203.0.113.7", PASSING, OLD],
    )
    kernel(monkeypatch, tmp_path / "flags", {LASTING: 0x80, PASSING: 0x01, OLD: 0x20})
    assert reachable_hosts("0.0.0.0") == ["192.168.0.7", "203.0.113.7"]
    assert reachable_hosts("::") == [LASTING]


def test_addresses_that_pass_are_better_than_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interfaces(monkeypatch, [PASSING, OLD])
    kernel(monkeypatch, tmp_path / "flags", {PASSING: 0x01, OLD: 0x20})
    assert reachable_hosts("::") == [PASSING, OLD]
    (tmp_path / "flags").write_text("no list of addresses")
    assert reachable_hosts("::") == [PASSING, OLD]


async def test_a_name_is_looked_up_among_the_addresses_of_its_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[object, ...]] = []

    def look_up(*what: object) -> list[tuple[object, ...]]:
        asked.append(what)
        return [(0, 0, 0, "", ("fe80::7%eth0", 1)), (0, 0, 0, "", ("2a11::9", 1))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    named = Destination("dns6", "node.example.org", 4001, PEER)
    found = await numeric_host(named)
    assert (found.kind, found.host, found.port, found.peer) == ("ip6", "fe80::7", 4001, PEER)
    wanted = (trio.socket.AF_INET6, trio.socket.SOCK_STREAM)
    assert asked == [("node.example.org", 4001, *wanted)]
    number = Destination("ip4", "203.0.113.7", 4001, PEER)
    assert await numeric_host(number) == number
    assert len(asked) == 1


@pytest.mark.parametrize("error", [OSError("no such name"), UnicodeError("no name at all")])
async def test_a_name_that_nobody_knows_is_said(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def look_up(*_: object) -> None:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(AddressError, match=rf"/dns4/node.example.org/tcp/4001.*: {error}"):
        await numeric_host(Destination("dns4", "node.example.org", 4001, PEER))


async def test_names_that_nobody_answers_for_take_few_threads_and_keep_no_invite_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, answers = list[str](), threading.Event()

    def look_up(host: str, *_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        if host.startswith("slow"):
            answers.wait()
        return [(0, 0, 0, "", ("203.0.113.7", 1))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    async with trio.open_nursery() as nursery:
        for number in range(3 * MAX_LOOKUPS):
            advertised = Destination("dns4", f"slow{number}.example.org", 4001, PEER)
            nursery.start_soon(partial(numeric_host, advertised, named=False))
        while len(asked) < MAX_LOOKUPS:
            await trio.sleep(0.01)
        invite = Destination("dns4", "node.example.org", 4001, PEER)
        assert (await numeric_host(invite)).host == "203.0.113.7"
        assert len(asked) == MAX_LOOKUPS + 1
        answers.set()


def test_whoever_is_reached_through_a_peer_has_an_address_that_may_be_advertised() -> None:
    host = ".".join(["a" * 57, "b" * 56])
    relay = parse_destination(f"/dns4/{host}/tcp/65535/p2p/{RELAY}")
    through = str(replace(relay, peer=PEER, relay=RELAY))
    assert len(through) == MAX_ADDRESS_CHARS
    assert parse_destination(through).first_hop == relay
    with pytest.raises(AddressError, match="not a host"):
        parse_destination(f"/dns4/{host}b/tcp/65535/p2p/{RELAY}")


def test_behind_a_relay_it_is_the_relay_that_is_dialled() -> None:
    direct = parse_destination(f"/ip4/203.0.113.7/tcp/4001/p2p/{PEER}")
    assert direct.first_hop is direct
    at = f"/ip4/203.0.113.7/tcp/4001/p2p/{RELAY}"
    relayed = parse_destination(f"{at}/p2p-circuit/p2p/{PEER}")
    assert (relayed.peer, relayed.relay) == (PEER, RELAY)
    assert relayed.first_hop == parse_destination(at)
