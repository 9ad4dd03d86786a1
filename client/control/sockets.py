"""Finds the control sockets of nodes, and whether anybody listens on them.

A socket is a file ``<swarm>-<peer>.sock`` in a folder that only its owner may enter. A file whose
node died refuses connections; that, and nothing about its age, makes it stale.
"""

import re
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from client.errors import ExitCode, UserError

SUFFIX = ".sock"
MAX_SOCKET_PATH_BYTES = 103
"""The smallest ``sun_path`` in use (macOS: 104 with its terminating zero; Linux has 108)."""
PATIENCE_S = 0.5
_KERNEL_LIST: Final = Path("/proc/net/unix")
_LISTENS: Final = 1 << 16  # __SO_ACCEPTCON
_NAME: Final = re.compile(r"[0-9a-f]{8}-[0-9A-Za-z]{8}\.sock")
MAX_LISTENING: Final = 256


def socket_path(folder: Path, swarm: str, peer: str) -> Path:
    """Return the socket of one node; the name alone tells swarm and peer apart.

    Raises:
        UserError: the path is longer than the operating system allows.
    """
    path = folder / f"{swarm[:8]}-{peer[-8:]}{SUFFIX}"
    if len(str(path).encode()) > MAX_SOCKET_PATH_BYTES:
        words = f"{path} is longer than the {MAX_SOCKET_PATH_BYTES} bytes that a socket may have"
        next_step = "set VOLUNTEER_HOME to a shorter folder"
        raise UserError(words, next_step, ExitCode.CONFIG)
    return path


def is_alive(path: Path) -> bool:
    """Whether a node listens on ``path``; a busy one counts as alive."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PATIENCE_S)
        try:
            probe.connect(str(path))
        except (TimeoutError, BlockingIOError):
            return True  # too many wait already
        except OSError:
            return False
    return True


def live_sockets(folder: Path) -> list[Path]:
    """Return the sockets in ``folder`` that a node listens on, by name; none if we may not look."""
    with suppress(OSError):
        return [path for path in sorted(folder.glob(f"*{SUFFIX}")) if is_alive(path)]
    return []


def listening_sockets() -> list[Path]:
    """Return the sockets named like ours on which any process of this machine listens, by path.

    Linux tells everybody their paths, though only some may connect; elsewhere the list is empty.
    Processes in other network namespaces (containers) are not in it.
    """
    try:
        with _KERNEL_LIST.open(encoding="utf-8", errors="replace") as table:
            rows = [line.split(maxsplit=7) for line in table]
    except OSError:
        return []
    found = set()
    for row in rows:
        if len(row) == 8 and row[3].isalnum() and row[7].startswith("/"):
            path = Path(row[7].rstrip("\n"))
            if _flags(row[3]) & _LISTENS and _NAME.fullmatch(path.name):
                found.add(path)
    return sorted(found)[:MAX_LISTENING]


def _flags(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


def remove_stale(path: Path) -> None:
    """Remove the socket of a node that is gone.

    Raises:
        UserError: a node still listens on it, or something else than a socket is there.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UserError(f"{path} is in the way: it is no socket", "remove it", ExitCode.CONFIG)
    if is_alive(path):
        words = f"a volunteer already listens on {path}"
        raise UserError(words, "show it with: volunteer attach", ExitCode.TEMPORARY)
    path.unlink(missing_ok=True)
