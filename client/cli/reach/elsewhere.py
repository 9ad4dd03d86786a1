"""Volunteers of this machine that run in other homes, in words for who looks in the wrong one."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

import psutil

from client.control.client import running_nodes
from client.limits.local_volunteers import Board, Seen
from client.store.paths import HOME_VARIABLE, find_folders

MAX_LISTED: Final = 8


def running_elsewhere(runtime: Path) -> list[str]:
    """Return a line for each volunteer of this user that runs in another home, and how to see it;
    one more for those of other users.

    Args:
        runtime: where the control sockets of this home are.
    """
    seen = sorted(Board().others(), key=lambda each: each.notice.pid)
    own = [each.notice.pid for each in seen if each.user == os.geteuid()]
    lines = [line for pid in own if (line := _line(pid, runtime))]
    more = [f"and {len(lines) - MAX_LISTED} more of yours"] if len(lines) > MAX_LISTED else []
    return [*lines[:MAX_LISTED], *more, *_of_others(seen)]


def _line(pid: int, runtime: Path) -> str:
    """Return where a process of ours runs; empty: here, or it is not known where."""
    try:
        environ = psutil.Process(pid).environ()
    except psutil.Error:
        return ""
    folder = find_folders(environ).runtime
    if folder == runtime:
        return ""
    home = environ.get(HOME_VARIABLE)
    where = f"in {home}" if home else "in your usual home"
    command = f"{HOME_VARIABLE}={shlex.quote(home)}" if home else f"env -u {HOME_VARIABLE}"
    return f"process {pid}{_swarm(pid, folder)} runs {where}: {command} volunteer status"


def _swarm(pid: int, folder: Path) -> str:
    """Return the swarm of a process in words; empty where it does not say."""
    try:
        names = [node.swarm_name for _, node in running_nodes(folder) if node.pid == pid]
    except OSError:
        return ""
    return f", of {names[0]}," if names else ""


def _of_others(seen: list[Seen]) -> list[str]:
    count = sum(each.user != os.geteuid() for each in seen)
    if not count:
        return []
    return [f"{count} {'volunteer' if count == 1 else 'volunteers'} of other users run here"]
