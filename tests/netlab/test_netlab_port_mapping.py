"""Port mapping with a real router's program: miniupnpd behind UPnP, and PCP for IPv6."""

import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.netlab.inside import inside
from tests.netlab.internet import Internet, Place, why_not
from tests.netlab.routers import IPv6, Router

reason = why_not(port_mapper=True)
pytestmark = pytest.mark.skipif(reason is not None, reason=f"no laboratory here: {reason}")
PORT = 4001
DEADLINE_S = 40.0
HOME = Place(Router.PORT_RESTRICTED, port_mapper=True, others=("guest",))
ONE = Place()


class Mapping:
    """The program on a host, and what it says."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def next_line(self) -> str:
        assert self._process.stdout is not None
        ready = select.select([self._process.stdout], [], [], DEADLINE_S)[0]
        assert ready, "it says nothing"
        return self._process.stdout.readline().strip()

    def stop(self) -> None:
        """Let it end in order."""
        self._process.terminate()
        assert self._process.wait(DEADLINE_S) == 0


@contextmanager
def _mapping(net: Internet, host: str, way: str = "upnp") -> Iterator[Mapping]:
    program = [sys.executable, "-m", "tests.support.map_port", str(PORT), way]
    process = subprocess.Popen(net.command(host, program), stdout=subprocess.PIPE, text=True)
    try:
        yield Mapping(process)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _gets_in(net: Internet, target: tuple[str, int], host: str = "one") -> bool:
    family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
    with inside(net, host, lambda: socket.socket(family)) as dialler:
        dialler.settimeout(1.5)
        try:
            dialler.connect(target)
        except OSError:
            return False
        return True


def test_a_port_is_mapped_and_given_back() -> None:
    with Internet({"home": HOME, "one": ONE}) as net:
        assert not _gets_in(net, (net.public("home"), PORT))
        with _mapping(net, "home") as mapping:
            assert mapping.next_line() == f"mapped {net.public('home')} {PORT}"
            assert _gets_in(net, (net.public("home"), PORT))
            assert net.mapped("home") == [PORT]
            mapping.stop()
        assert net.mapped("home") == []


def test_the_second_machine_of_a_home_gets_another_port() -> None:
    with (
        Internet({"home": HOME, "one": ONE}) as net,
        _mapping(net, "home") as first,
        _mapping(net, "guest") as second,
    ):
        found = sorted((first.next_line(), second.next_line()))
        ports = [int(line.split()[2]) for line in found]
        assert len(set(ports)) == 2
        for port in ports:
            assert _gets_in(net, (net.public("home"), port))


def test_a_hole_in_an_ipv6_firewall_is_made_and_closed() -> None:
    home = Place(Router.PORT_RESTRICTED, port_mapper=True, ipv6=IPv6.FILTERED)
    with Internet({"home": home, "one": Place(ipv6=IPv6.OPEN)}) as net:
        there = (net.address6("home"), PORT)
        with _mapping(net, "home", "pinhole") as mapping:
            assert mapping.next_line() == f"mapped {there[0]} {PORT}"
            assert _gets_in(net, there)
            assert net.mapped("home") == [PORT]
            mapping.stop()
        assert net.mapped("home") == []


def test_without_such_a_router_nothing_is_mapped() -> None:
    bare = Place(Router.PORT_RESTRICTED)
    with (
        Internet({"home": bare, "one": ONE}) as net,
        _mapping(net, "home") as mapping,
    ):
        assert mapping._process.stdout is not None
        assert not select.select([mapping._process.stdout], [], [], 8.0)[0]
        mapping.stop()
