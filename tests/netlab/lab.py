"""A laboratory: hosts in network namespaces, joined through a core by lines of rate and length.

Every host has a veth pair to the core; ``tc tbf`` limits what it sends at its own end and what it
gets at the core's. The core routes between them; where there is a delay, packets go through the
wire, a process of ours (``wire``). Holds the namespaces and the wire, and ends both with the block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from client.errors import UserError
from tests.netlab import ground
from tests.netlab.wire_process import DEVICE, QUEUE, WireProcess

CORE = "core"
"""The name of what joins all hosts; none of them has it."""
MTU = 1500
_FAR_TABLE = "77"
_ROUTES = """
set -e
cd /proc/sys/net/ipv4
echo 1 >ip_forward
for which in all default; do
    echo 0 >conf/$which/rp_filter
    echo 0 >conf/$which/send_redirects
done
"""
"""A packet from the wire comes in where no route to its sender goes out, and is none the worse."""


@dataclass(frozen=True)
class Host:
    """One host's line to everybody, Mb/s of Ethernet frames; both directions at the same time."""

    up_mbit: float
    down_mbit: float


def uniform(names: Iterable[str], mbit: float) -> dict[str, Host]:
    """Return equal hosts."""
    return {name: Host(mbit, mbit) for name in names}


class Lab:
    """A context manager; see the module's docstring.

    Args:
        lines: of each host, by a name of eight small letters and digits at most.
        rtt_ms: between any two hosts.
        queue_ms: what a full line holds back before it drops.

    Raises, when entered:
        UserError: rights or tools are missing, the kernel refused, or this process has one already.
    """

    def __init__(
        self, lines: Mapping[str, Host], rtt_ms: float = 0.0, queue_ms: float = 100.0
    ) -> None:
        self.rtt_ms, self._queue_ms = rtt_ms, queue_ms
        self.hosts = list(lines)
        self._lines = dict(lines)
        self.wire_counts: dict[str, int] = {}
        """What the wire did; known when the laboratory has ended."""
        self._wire: WireProcess | None = None

    def __enter__(self) -> Lab:
        reason = ground.why_not()
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
        """Return a host's IPv4 address."""
        return f"10.77.{self.hosts.index(host) + 1}.2"

    def rate_mbit(self, source: str, target: str) -> float:
        """Return the narrower of the two lines."""
        return min(self._lines[source].up_mbit, self._lines[target].down_mbit)

    def namespace(self, host: str) -> str:
        """Return the name of a host's namespace."""
        return ground.namespace(host)

    def command(self, host: str, command: Sequence[str] = ()) -> list[str]:
        """Return the command that runs a command on a host; its process id stays the same."""
        return ["ip", "netns", "exec", self.namespace(host), *command]

    def close(self) -> None:
        """Remove everything; may be called again."""
        try:
            self._clear()
        except BaseException:  # a second Ctrl-C must leave nothing behind either
            self._clear()
            raise

    def _clear(self) -> None:
        if self._wire is not None:
            self.wire_counts = self._wire.end()
            self._wire = None
        for name in ground.ours():
            ground.remove(name)

    # --- building ----------------------------------------------------------------------------

    def _build(self) -> None:
        self._add(CORE)
        ground.run(self.command(CORE, ["sh", "-c", _ROUTES]))
        for number, host in enumerate(self.hosts, 1):
            self._add_host(number, host)
        if self.rtt_ms:
            self._lay_wire()

    def _add(self, name: str) -> None:
        ground.run(["ip", "netns", "add", ground.namespace(name)])
        ground.run(["ip", "-n", ground.namespace(name), "link", "set", "lo", "up"])

    def _add_host(self, number: int, host: str) -> None:
        line = self._lines[host]
        self._add(host)
        core, there = ground.namespace(CORE), ground.namespace(host)
        end = f"to-{host}"
        self._ip(CORE, f"link add {end} mtu {MTU} type veth "
                       f"peer name eth0 mtu {MTU} netns {there}",
                 f"address add 10.77.{number}.1/24 dev {end}", f"link set {end} up")  # fmt: skip
        self._ip(host, f"address add 10.77.{number}.2/24 dev eth0", "link set eth0 up",
                 f"route add default via 10.77.{number}.1")  # fmt: skip
        ground.limit(there, "eth0", line.up_mbit, MTU, self._queue_ms)
        ground.limit(core, end, line.down_mbit, MTU, self._queue_ms)

    def _lay_wire(self) -> None:
        self._wire = WireProcess(self.command(CORE), self.rtt_ms / 2e3)
        self._ip(CORE, f"link set {DEVICE} mtu {MTU} txqueuelen {QUEUE} up",
                 f"route add default dev {DEVICE} table {_FAR_TABLE}",
                 f"rule add iif {DEVICE} lookup main priority 100",
                 *(f"rule add iif to-{host} lookup {_FAR_TABLE} priority 200"
                   for host in self.hosts))  # fmt: skip

    def _ip(self, host: str, *lines: str) -> None:
        ground.run(["ip", "-n", ground.namespace(host), "-batch", "-"], "\n".join(lines) + "\n")
