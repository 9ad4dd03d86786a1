"""A laboratory: hosts in network namespaces, joined through a core by lines of rate and length.

Every host has a veth pair to the core; ``tc tbf`` limits what it sends at its own end and what it
gets at the core's. The core routes between them; pairs with a delay, jitter or loss go through the
wire, a process of ours (``wire``). Holds the namespaces and the wire, and ends both with the block.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

from client.errors import UserError
from tests.netlab import ground
from tests.netlab.table import CORE, Table

WIRE = "wire"
WIRE_QUEUE = 20_000
"""Packets that wait for the wire's process at most."""
START_S = 20.0
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
        self._wire: subprocess.Popen[str] | None = None

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
            self._end_wire(self._wire)
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
        self._limit(there, "eth0", line.up_mbit)
        self._limit(core, end, line.down_mbit)

    def _limit(self, namespace: str, device: str, mbit: float) -> None:
        frame = self.table.mtu + 14
        burst = max(4 * frame, int(mbit * 1e6 / 8 * 0.002))
        held = burst + max(4 * frame, int(mbit * 1e6 / 8 * self.table.queue_ms / 1e3))
        ground.run(["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf",
                    "rate", f"{int(mbit * 1e6)}bit", "burst", str(burst),
                    "limit", str(held)])  # fmt: skip

    def _lay_wire(self) -> None:
        far = {}
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
        self._wire = self._start_wire(far)
        self._ip(CORE, f"link set {WIRE} mtu {self.table.mtu} txqueuelen {WIRE_QUEUE} up",
                 f"route add default dev {WIRE} table {_FAR_TABLE}",
                 f"rule add iif {WIRE} lookup main priority 100", *rules)  # fmt: skip

    def _start_wire(self, far: dict[str, tuple[float, float, float]]) -> subprocess.Popen[str]:
        program = Path(__file__).with_name("wire.py")
        wire = subprocess.Popen(
            self.command(CORE, [sys.executable, "-I", str(program), WIRE]),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,  # Ctrl-C is for us; it ends when its stdin does
        )  # fmt: skip
        self._wire = wire
        assert wire.stdin is not None
        assert wire.stdout is not None
        wire.stdin.write(json.dumps(far) + "\n")
        wire.stdin.flush()
        ready = select.select([wire.stdout], [], [], START_S)[0]
        if not ready or wire.stdout.readline().strip() != "ready":
            raise UserError("the wire did not start")
        return wire

    def _end_wire(self, wire: subprocess.Popen[str]) -> None:
        try:
            said = wire.communicate(timeout=START_S)[0]
            self.wire_counts = json.loads(said) if said.startswith("{") else {}
        except subprocess.TimeoutExpired:
            pass
        finally:
            wire.kill()
            wire.wait()

    def _ip(self, host: str, *lines: str) -> None:
        ground.run(["ip", "-n", ground.namespace(host), "-batch", "-"], "\n".join(lines) + "\n")
