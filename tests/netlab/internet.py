"""A laboratory of homes: a public segment, and places on it, most of them behind a router.

The public segment is one namespace that routes; each place has a line to it, a veth pair, with
addresses of its own, which nothing outside the namespaces ever sees:

    11.0.N.2, 2a11:0:N::2       place N, as the world sees it: its host, or its router
    100.64.N.2                  a router behind its provider's
    192.168.1.2, .3 ...         the hosts of a home, the same in all homes
    2a11:0:N:1::2, ::3 ...      their IPv6 addresses

These are public by the judgement of ``ipaddress``. All packets between places take half of
``rtt_ms``: they go through the wire, a process of ours (``wire``). Where a place says so, ``tc``
limits what it sends and gets. Holds the namespaces, the wire and the routers' miniupnpd, and ends
all with the block.
"""

from __future__ import annotations

import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from client.errors import UserError
from tests.netlab import ground
from tests.netlab.routers import IPv6, Router, port_mapper, rules

DEVICE = "wire"
QUEUE = 20_000
"""Packets that wait for the wire's process at most."""
START_S = 20.0


class WireProcess:
    """Runs from its making to ``end``.

    Args:
        within: the command that runs a command in the namespace of the wire.
        delay_s: of each packet.

    Raises:
        UserError: it did not start.
    """

    def __init__(self, within: Sequence[str], delay_s: float) -> None:
        program = Path(__file__).with_name("wire.py")
        self._process = subprocess.Popen(
            [*within, sys.executable, "-I", str(program), DEVICE, str(delay_s)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,  # Ctrl-C is for us; it ends when its stdin does
        )  # fmt: skip
        try:
            self._start()
        except BaseException:
            self.end()
            raise

    def _start(self) -> None:
        process = self._process
        assert process.stdout is not None
        ready = select.select([process.stdout], [], [], START_S)[0]
        if not ready or process.stdout.readline().strip() != "ready":
            raise UserError("the wire did not start")

    def end(self) -> None:
        """End it and its device."""
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=START_S)
        self._process.kill()
        self._process.wait()


CORE = "core"
MTU = 1500
MAX_PLACES = 200
_FAR_TABLE = "77"
_AT_ONCE = (
    "cd /proc/sys/net/ipv6/conf && for which in all default; do echo 0 >$which/accept_dad; done"
)
"""A new IPv6 address would be looked for on its line for two seconds before it may be used."""
_PICKS_UP = "/proc/sys/net/netfilter/nf_conntrack_tcp_loose"
_FORWARD = """
set -e
cd /proc/sys/net
echo 1 >ipv4/ip_forward
echo 1 >ipv6/conf/all/forwarding
for which in all default; do
    echo 0 >ipv4/conf/$which/rp_filter
    echo 0 >ipv4/conf/$which/send_redirects
done
"""


@dataclass(frozen=True, slots=True)
class Place:
    """One line of the public segment and what is at its end. Without a router: one public host."""

    router: Router | None = None
    others: tuple[str, ...] = ()
    """Further hosts of the home; the first has the name of the place."""
    carrier: Router | None = None
    """The router of a provider that has no public address for the home's (RFC 6598)."""
    ipv4: bool = True
    ipv6: IPv6 = IPv6.NONE
    port_mapper: bool = False
    """Whether the router maps ports by UPnP and PCP."""
    up_mbit: float | None = None
    down_mbit: float | None = None

    @property
    def has_ipv6(self) -> bool:
        """Whether its hosts have IPv6 addresses."""
        return self.ipv6 is not IPv6.NONE


def why_not(*, routers: bool = True, port_mapper: bool = False) -> str | None:
    """Return why no such laboratory can be built here; None: it can."""
    tools = {"nft": "nftables", "conntrack": "conntrack"} if routers else {}
    tools |= {"miniupnpd": "miniupnpd-nftables"} if port_mapper else {}
    missing = [package for tool, package in tools.items() if shutil.which(tool) is None]
    return ground.why_not() or (f"install {' and '.join(missing)}" if missing else None)


class Internet:
    """A context manager; see the module's docstring.

    Args:
        places: by a name of eight small letters and digits at most.
        rtt_ms: between any two places.
        queue_ms: what a limited line holds back before it drops.
        net: the first half of the places' IPv4 addresses.

    Raises, when entered:
        UserError: rights or tools are missing, the kernel refused, or this process has one already.
    """

    def __init__(
        self,
        places: Mapping[str, Place],
        rtt_ms: float = 0.0,
        queue_ms: float = 100.0,
        net: str = "11.0",
    ) -> None:
        assert len(places) <= MAX_PLACES
        self.places = dict(places)
        self.rtt_ms, self._queue_ms, self._net = rtt_ms, queue_ms, net
        self._numbers = {name: number for number, name in enumerate(places, 1)}
        self._homes = {
            host: (name, number)
            for name, place in places.items()
            for number, host in enumerate((name, *place.others))
        }
        self._wire: WireProcess | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._port_mappers: list[subprocess.Popen[bytes]] = []
        self._mapper_of: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Internet:
        routers = any(place.router for place in self.places.values())
        mappers = any(place.port_mapper for place in self.places.values())
        reason = why_not(routers=routers, port_mapper=mappers)
        if reason:
            raise UserError(f"no laboratory here: {reason}")
        if ground.ours():
            raise UserError("this process already has a laboratory")
        ground.remove_stale()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self, host: str) -> str:
        """Return a host's own IPv4 address."""
        place, number = self._homes[host]
        return self.public(host) if self.places[place].router is None else f"192.168.1.{number + 2}"

    def address6(self, host: str) -> str:
        """Return a host's IPv6 address."""
        place, number = self._homes[host]
        net = f"2a11:0:{self._numbers[place]:x}"
        return f"{net}::2" if self.places[place].router is None else f"{net}:1::{number + 2:x}"

    def public(self, host: str) -> str:
        """Return the IPv4 address under which the world sees a host."""
        return f"{self._net}.{self._numbers[self._homes[host][0]]}.2"

    def namespace(self, host: str) -> str:
        """Return the name of a host's namespace."""
        return ground.namespace(host)

    def command(self, host: str, command: Sequence[str] = ()) -> list[str]:
        """Return the command that runs a command on a host; its process id stays the same."""
        return ["ip", "netns", "exec", self.namespace(host), *command]

    def counted(self, host: str, counter: str) -> int:
        """Return the bytes that a counter of a host's table ``probes`` has seen."""
        shown = ground.run(
            self.command(host, ["nft", "list", "counter", "inet", "probes", counter])
        )
        return int(shown.partition("bytes ")[2].split()[0])

    def router(self, place: str) -> str:
        """Return the name of a place's router, for ``command``: a host of its own."""
        return f"{place}0router"

    def mapped(self, place: str) -> list[int]:
        """Return the ports that a place's router passes on to its hosts, or lets in to them."""
        where, ports = self.router(place), set[int]()
        for chain in ("prerouting_miniupnpd", "miniupnpd"):
            shown = ground.run(self.command(where, ["nft", "list", "chain", "inet", "home", chain]))
            ports |= {int(port) for port in re.findall(r"dport (\d+)", shown)}
        return sorted(ports)

    def restart_router(self, place: str) -> None:
        """Let a place's router forget its mappings and connections."""
        where = self.router(place)
        ground.run(self.command(where, ["nft", "flush", "ruleset"]))
        ground.run(self.command(where, ["conntrack", "-F"]))
        self._load_rules(where, self.places[place])

    @contextmanager
    def router_down(self, place: str) -> Iterator[None]:
        """A place's router is off, and comes back without its mappings and connections."""
        where, number = self.router(place), self._numbers[place]
        self._ip(where, "link set wan down", "link set lan down")
        if mapper := self._mapper_of.pop(place, None):
            mapper.terminate()
            mapper.wait()
        try:
            yield
        finally:
            self._ip(where, "link set wan up", "link set lan up",
                     f"route replace default via {self._net}.{number}.1")  # fmt: skip
            self.restart_router(place)
            if mapper is not None:
                self._start_port_mapper(place, self.places[place])

    def renumber(self, place: str, *, silent: bool = False) -> str:
        """Give a place's router another public address, as some providers do every night; return
        it.

        Args:
            silent: it passes nothing on of connections that it does not know, so their ends hear
                nothing any more. Else the other end answers that it knows no such connection.
        """
        where, number = self.router(place), self._numbers[place]
        if silent:
            ground.run(self.command(where, ["sh", "-c", f"echo 0 >{_PICKS_UP}"]))
        self._ip(CORE, f"address add 11.1.{number}.1/24 dev to-{place}")
        self._ip(where, f"address add 11.1.{number}.2/24 dev wan",
                 f"address delete {self._net}.{number}.2/24 dev wan",
                 f"route replace default via 11.1.{number}.1")  # fmt: skip
        ground.run(self.command(where, ["conntrack", "-F"]))
        return f"11.1.{number}.2"

    def move_host(self, host: str, home: str) -> str:
        """Unplug a host and put it into another home, by another device; return its address."""
        router, end = self.router(home), f"in-{host}"
        self._ip(host, "link set eth0 down", "address flush dev eth0")
        self._cable(router, end, host, "eth1")
        self._ip(router, f"link set {end} master lan")
        self._ip(host, "address add 192.168.1.77/24 dev eth1",
                 "route replace default via 192.168.1.1")  # fmt: skip
        return "192.168.1.77"

    def close(self) -> None:
        """Remove everything; may be called again."""
        try:
            self._clear()
        except BaseException:  # a second Ctrl-C must leave nothing behind either
            self._clear()
            raise

    def _clear(self) -> None:
        if self._wire is not None:
            self._wire.end()
            self._wire = None
        for name in ground.ours():
            ground.remove(name)
        while self._port_mappers:
            self._port_mappers.pop().wait()  # killed with its namespace
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    # --- building ----------------------------------------------------------------------------

    def _build(self) -> None:
        self._add(CORE, forwards=True)
        for name, place in self.places.items():
            self._add_place(name, place)
        if self.rtt_ms:
            self._lay_wire()
        for name, place in self.places.items():
            if place.port_mapper:
                self._start_port_mapper(name, place)

    def _add(self, name: str, *, forwards: bool = False) -> None:
        ground.run(["ip", "netns", "add", ground.namespace(name)])
        ground.run(["ip", "-n", ground.namespace(name), "link", "set", "lo", "up"])
        ground.run(self.command(name, ["sh", "-c", _AT_ONCE]))
        if forwards:
            ground.run(self.command(name, ["sh", "-c", _FORWARD]))

    def _add_place(self, name: str, place: Place) -> None:
        number, end = self._numbers[name], f"to-{name}"
        outer = self._outermost(name, place)
        self._add(outer, forwards=place.router is not None)
        self._join(CORE, end, outer, "wan", number, place)
        if place.up_mbit:
            ground.limit(ground.namespace(outer), "wan", place.up_mbit, MTU, self._queue_ms)
        if place.down_mbit:
            ground.limit(ground.namespace(CORE), end, place.down_mbit, MTU, self._queue_ms)
        if place.ipv6 is IPv6.BROKEN:
            self._ip(CORE, f"-6 rule add iif {end} blackhole priority 50")
        if place.router is None:
            return
        if place.carrier is not None:
            self._add_carrier(name, outer, place.carrier, number, place)
        self._load_rules(self.router(name), place)
        self._add_home(name, number, place)

    def _outermost(self, name: str, place: Place) -> str:
        if place.router is None:
            return name
        return self.router(name) if place.carrier is None else f"{name}0carrier"

    def _join(self, one: str, end: str, other: str, end2: str, number: int, place: Place) -> None:
        """Lay a public line from the core."""
        self._cable(one, end, other, end2)
        net4, net6 = f"{self._net}.{number}", f"2a11:0:{number:x}"
        if place.ipv4:
            self._ip(one, f"address add {net4}.1/24 dev {end}")
            self._ip(other, f"address add {net4}.2/24 dev {end2}",
                     f"route add default via {net4}.1")  # fmt: skip
        if place.has_ipv6:
            self._ip(one, f"address add {net6}::1/64 dev {end} nodad",
                     f"route add {net6}:1::/64 via {net6}::2")  # fmt: skip
            self._ip(other, f"address add {net6}::2/64 dev {end2} nodad",
                     f"route add default via {net6}::1")  # fmt: skip

    def _add_carrier(
        self, name: str, carrier: str, kind: Router, number: int, place: Place
    ) -> None:
        """Put the home's router behind its provider's; IPv6 goes through both as it is."""
        ground.run(self.command(carrier, ["nft", "-f", "-"]), rules(kind))
        router = self.router(name)
        self._add(router, forwards=True)
        self._cable(carrier, "lan", router, "wan")
        net4, net6 = f"100.64.{number}", f"2a11:0:{number:x}"
        self._ip(carrier, f"address add {net4}.1/24 dev lan")
        self._ip(router, f"address add {net4}.2/24 dev wan", f"route add default via {net4}.1")
        if place.has_ipv6:
            self._ip(carrier, f"address add {net6}:2::1/64 dev lan nodad",
                     f"route add {net6}:1::/64 via {net6}:2::2")  # fmt: skip
            self._ip(router, f"address add {net6}:2::2/64 dev wan nodad",
                     f"route add default via {net6}:2::1")  # fmt: skip

    def _add_home(self, name: str, number: int, place: Place) -> None:
        router, net6 = self.router(name), f"2a11:0:{number:x}:1"
        self._ip(router, "link add lan type bridge", "link set lan up")
        if place.ipv4:
            self._ip(router, "address add 192.168.1.1/24 dev lan")
        if place.has_ipv6:
            self._ip(router, f"address add {net6}::1/64 dev lan nodad")
        for host in (name, *place.others):
            self._add(host)
            self._cable(router, f"to-{host}", host, "eth0")
            self._ip(router, f"link set to-{host} master lan")
            if place.ipv4:
                self._ip(host, f"address add {self.address(host)}/24 dev eth0",
                         "route add default via 192.168.1.1")  # fmt: skip
            if place.has_ipv6:
                self._ip(host, f"address add {self.address6(host)}/64 dev eth0 nodad",
                         f"route add default via {net6}::1")  # fmt: skip

    def _cable(self, one: str, end: str, other: str, end2: str) -> None:
        self._ip(one, f"link add {end} mtu {MTU} type veth "
                      f"peer name {end2} mtu {MTU} netns {ground.namespace(other)}",
                 f"link set {end} up")  # fmt: skip
        self._ip(other, f"link set {end2} up")

    def _load_rules(self, where: str, place: Place) -> None:
        assert place.router is not None
        firewall = place.ipv6 is IPv6.FILTERED
        ground.run(self.command(where, ["nft", "-f", "-"]), rules(place.router, firewall=firewall))

    def _lay_wire(self) -> None:
        self._wire = WireProcess(self.command(CORE), self.rtt_ms / 2e3)
        self._ip(CORE, f"link set {DEVICE} mtu {MTU} txqueuelen {QUEUE} addrgenmode none up")
        for family in ("-4", "-6"):
            self._ip(CORE, f"{family} route add default dev {DEVICE} table {_FAR_TABLE}",
                     f"{family} rule add iif {DEVICE} lookup main priority 100",
                     *(f"{family} rule add iif to-{name} lookup {_FAR_TABLE} priority 200"
                       for name in self.places))  # fmt: skip

    def _start_port_mapper(self, name: str, place: Place) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="vlab")
        folder = Path(self._folder.name, name)
        folder.mkdir(exist_ok=True)
        (folder / "leases").unlink(missing_ok=True)  # where it begins again
        uuid = f"00000000-0000-0000-0000-{self._numbers[name]:012x}"
        configuration = folder / "miniupnpd.conf"
        configuration.write_text(port_mapper(uuid, str(folder), place.has_ipv6))
        pid = folder / "pid"
        router = self.router(name)
        self._ip(router, "route replace 224.0.0.0/4 dev lan")
        with (folder / "log").open("wb") as log:
            mapper = subprocess.Popen(
                self.command(router, ["miniupnpd", "-d", "-f", str(configuration), "-P", str(pid)]),
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self._port_mappers.append(mapper)
        self._mapper_of[name] = mapper
        self._await_port_mapper(router, folder / "log")

    def _await_port_mapper(self, router: str, log: Path) -> None:
        """Wait until it listens for PCP, the last that it opens."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if ground.run(self.command(router, ["ss", "-Hlun", "sport", "=", ":5351"])).strip():
                return
            time.sleep(0.05)
        raise UserError(f"miniupnpd did not start: {log.read_text(errors='replace')[-500:]}")

    def _ip(self, host: str, *lines: str) -> None:
        """Run lines of ``ip``; one that begins with a family is a command of its own."""
        for line in lines:
            ground.run(["ip", "-n", ground.namespace(host), *line.split()])
