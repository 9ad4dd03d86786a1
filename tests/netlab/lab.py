"""A laboratory: hosts in network namespaces, joined through a core by lines of rate and length.

Every host has a veth pair to the core; ``tc tbf`` limits what it sends at its own end and what it
gets at the core's. The core routes between them; pairs with a delay, jitter or loss go through the
wire, a process of ours (``wire``). Holds the namespaces and the wire, and ends both with the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from client.errors import UserError
from tests.netlab import ground
from tests.netlab.table import CORE, Table
from tests.netlab.wire_process import DEVICE, QUEUE, Shape, WireProcess

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


class Lab:
    """A context manager; see the module's docstring.

    Raises, when entered:
        UserError: rights or tools are missing, the kernel refused, or this process has one already.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.hosts = list(table.hosts)
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
        self._lay_wire()

    def _add(self, name: str) -> None:
        ground.run(["ip", "netns", "add", ground.namespace(name)])
        ground.run(["ip", "-n", ground.namespace(name), "link", "set", "lo", "up"])

    def _add_host(self, number: int, host: str) -> None:
        line, mtu = self.table.hosts[host], self.table.mtu
        self._add(host)
        core, there = ground.namespace(CORE), ground.namespace(host)
        end = f"to-{host}"
        self._ip(CORE, f"link add {end} mtu {mtu} type veth "
                       f"peer name eth0 mtu {mtu} netns {there}",
                 f"address add 10.77.{number}.1/24 dev {end}", f"link set {end} up")  # fmt: skip
        self._ip(host, f"address add 10.77.{number}.2/24 dev eth0", "link set eth0 up",
                 f"route add default via 10.77.{number}.1")  # fmt: skip
        ground.limit(there, "eth0", line.up_mbit, mtu, self.table.queue_ms)
        ground.limit(core, end, line.down_mbit, mtu, self.table.queue_ms)

    def _lay_wire(self) -> None:
        far: dict[str, Shape] = {}
        rules = []
        for one, other in permutations(self.hosts, 2):
            link = self.table.link(one, other)
            if not link.clear:
                ends = f"{self.address(one)} {self.address(other)}"
                far[ends] = (link.rtt_ms / 2e3, link.jitter_ms / 1e3, link.loss)
                rules.append(f"rule add from {self.address(one)} to {self.address(other)} "
                             f"lookup {_FAR_TABLE} priority 200")  # fmt: skip
        if not far:
            return
        self._wire = WireProcess(self.command(CORE), far)
        self._ip(CORE, f"link set {DEVICE} mtu {self.table.mtu} txqueuelen {QUEUE} up",
                 f"route add default dev {DEVICE} table {_FAR_TABLE}",
                 f"rule add iif {DEVICE} lookup main priority 100", *rules)  # fmt: skip

    def _ip(self, host: str, *lines: str) -> None:
        ground.run(["ip", "-n", ground.namespace(host), "-batch", "-"], "\n".join(lines) + "\n")
