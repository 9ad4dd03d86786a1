"""Asks every volunteer that runs on this machine how it is, whoever runs it.

The kernel's list of sockets has all of them, also those that hang or are another user's. Where the
system has no such list, those of this home and of this machine's services are found.
"""

import os
import pwd
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from client.cli.reach.services import service_sockets
from client.control.client import ControlClient, ControlError, NoAnswer, NotRunning
from client.control.snapshot import Snapshot
from client.control.sockets import SUFFIX, Listener, listener, listening_sockets
from client.errors import UserError
from client.store.paths import HOME_VARIABLE, find_folders

ASK_S: Final = 2.0
ASKED_AT_ONCE: Final = 16


class Volunteer(Struct, frozen=True, kw_only=True):
    """One volunteer of this machine."""

    socket: str
    home: str = ""
    """``VOLUNTEER_HOME``; empty: the user's usual folders, or not known."""
    user: str = ""
    pid: int | None = None
    problem: str = ""
    """Why nothing more is known of it; empty: it answers."""
    now: Snapshot | None = None
    """What it answers."""


def find_volunteers() -> list[Volunteer]:
    """Return the volunteers that run on this machine: those that answer first, by swarm and
    home."""
    with ThreadPoolExecutor(ASKED_AT_ONCE) as threads:
        asked = threads.map(_ask, sorted({*_own_sockets(), *listening_sockets()}))
        found = [one for one in asked if one is not None]
    return sorted(found, key=lambda one: (one.now.swarm_name if one.now else "~", one.home))


def _own_sockets() -> Iterator[Path]:
    """Yield the sockets of this home and of the services."""
    folders = service_sockets()
    with suppress(UserError):
        folders.append(find_folders().runtime)
    for folder in folders:
        with suppress(OSError):  # not there, or another user's
            yield from (folder / name for name in os.listdir(folder) if name.endswith(SUFFIX))


def _ask(path: Path) -> Volunteer | None:
    """Return the volunteer that listens on a socket; None: nobody does."""
    try:
        who = listener(path)
    except PermissionError:
        return _closed(path)
    except OSError:
        return None  # its process is gone
    home, user = _home_of(who, path), user_name(who.user)
    one = Volunteer(socket=str(path), home=home, user=user, pid=who.pid)
    try:
        with ControlClient(path, timeout_s=ASK_S) as node:
            now = node.status()
    except NotRunning:
        return None  # it has ended meanwhile
    except NoAnswer:
        words = f"process {who.pid or '?'} listens but does not answer"
        return replace(one, problem=words)
    except ControlError as error:
        return replace(one, problem=error.message)
    return replace(one, now=now)


def _closed(path: Path) -> Volunteer:
    user = ""
    with suppress(OSError):
        user = user_name(path.parent.lstat().st_uid)
    words = f"this user may not open {path}: sudo volunteer list"
    return Volunteer(socket=str(path), home=_home_by_path(path), user=user, problem=words)


def _home_of(who: Listener, path: Path) -> str:
    """Return a volunteer's home: by its environment, which its owner and root may read, else by
    where its socket is."""
    import psutil

    if who.pid is None:
        return _home_by_path(path)
    try:
        return str(psutil.Process(who.pid).environ().get(HOME_VARIABLE, ""))
    except (psutil.Error, OSError, ValueError):
        return _home_by_path(path)


def _home_by_path(path: Path) -> str:
    return str(path.parent.parent) if path.parent.name == "run" else ""


def user_name(user: int | None) -> str:
    """Return the name of a user; its number where it has none."""
    if user is None:
        return ""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
