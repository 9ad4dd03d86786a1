"""Network namespaces of this machine: whether we may, which are ours, which are nobody's.

The kernel keeps a namespace until it is deleted. Each is named after the process that made it
(``vlab-PID-START-HOST``, START being when that process began), so that what a killed laboratory
left is known for certain and removed by the next one.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from client.errors import UserError

PREFIX = "vlab"
TIMEOUT_S = 20.0
_NAME = re.compile(PREFIX + r"-(\d+)-(\d+)-[a-z0-9]+")
_NAMED = Path("/run/netns")
_NEEDED_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
"""Bits of capabilities (linux/capability.h)."""


def why_not() -> str | None:
    """Return why no laboratory can be built here; None: it can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces exist on Linux only"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found: install iproute2"
    lacking = [name for name, bit in _NEEDED_CAPABILITIES.items() if not _capable(bit)]
    if lacking:
        return f"it takes {' and '.join(lacking)}: run it as root"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun is not there or may not be used"
    return None


def namespace(host: str) -> str:
    """Return the name of this process's namespace for a host."""
    return f"{PREFIX}-{os.getpid()}-{_began(os.getpid())}-{host}"


def ours() -> list[str]:
    """Return the namespaces that this process has made."""
    return [name for name in _named() if name.startswith(namespace(""))]


def remove_stale() -> list[str]:
    """Remove the namespaces of laboratories whose process has ended; return their names."""
    stale = []
    for name in _named():
        found = _NAME.fullmatch(name)
        if found and _began(int(found[1])) != int(found[2]):
            remove(name)
            stale.append(name)
    return stale


def remove(name: str) -> None:
    """Kill what runs in a namespace, and delete it and its devices."""
    found = subprocess.run(
        ["ip", "netns", "pids", name],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    for pid in found.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(
        ["ip", "netns", "delete", name], capture_output=True, timeout=TIMEOUT_S, check=False
    )


def run(command: Sequence[str], given: str | None = None) -> str:
    """Run a command to its end; return what it prints.

    Raises:
        UserError: it failed.
    """
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        raise UserError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout


def limit(name: str, device: str, mbit: float, mtu: int, queue_ms: float) -> None:
    """Limit what a device of a namespace sends.

    Args:
        mbit: megabits of Ethernet frames per second.
        queue_ms: what it holds back before it drops.
    """
    frame = mtu + 14
    burst = max(4 * frame, int(mbit * 1e6 / 8 * 0.002))
    held = burst + max(4 * frame, int(mbit * 1e6 / 8 * queue_ms / 1e3))
    run(["tc", "-n", name, "qdisc", "add", "dev", device, "root", "tbf",
         "rate", f"{int(mbit * 1e6)}bit", "burst", str(burst), "limit", str(held)])  # fmt: skip


def _named() -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(path.name for path in _NAMED.iterdir())
    return []


def _capable(bit: int) -> bool:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.M)
    return bool(found and int(found[1], 16) >> bit & 1)


def _began(pid: int) -> int | None:
    """When a process began, in clock ticks since boot (proc(5), stat field 22)."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None
