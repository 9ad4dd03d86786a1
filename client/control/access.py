"""Who is at the other end of a control connection, as the kernel says.

The node's own user and root may change it; whoever else the socket's permissions let in may look.
Whom the kernel does not name may only look.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Final, Protocol

_UCRED: Final = struct.Struct("iII")  # Linux, unix(7): pid, uid, gid
_XUCRED: Final = struct.Struct("=IIh")  # macOS and BSD, <sys/ucred.h>: version, uid, groups...
_XUCRED_BYTES: Final = 4 + 4 + 4 + 16 * 4
_SOL_LOCAL: Final = 0
_LOCAL_PEERCRED: Final = 1
ROOT: Final = 0


class Connected(Protocol):
    """What is needed of a socket; trio's and the standard library's both have it."""

    def getsockopt(self, level: int, name: int, size: int, /) -> bytes:
        """Return an option of the socket."""


def peer_uid(connection: Connected) -> int | None:
    """Return the user at the other end, or None where the system does not tell."""
    try:
        if hasattr(socket, "SO_PEERCRED"):
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
            return int(_UCRED.unpack(raw)[1])
        raw = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES)
        return int(_XUCRED.unpack_from(raw)[1])
    except (OSError, struct.error):
        return None


def may_write(uid: int | None) -> bool:
    """Whether a user may stop, finish, pause and resume this process's node."""
    return uid is not None and uid in (os.geteuid(), ROOT)
