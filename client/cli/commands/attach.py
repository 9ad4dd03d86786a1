"""``volunteer attach``: show the volunteer that runs here, or on another machine through SSH.

Where this home has none, or several volunteers fit, a person at a terminal chooses among those of
this machine. Detaching and attaching again is how one looks at the next.
"""

from __future__ import annotations

import sys
from pathlib import Path

from client.cli.reach.home import running_home
from client.cli.reach.machine import Volunteer, find_volunteers
from client.cli.reach.running import find_socket
from client.cli.terminal.output import one_line, say
from client.cli.terminal.parameters import RunningSwarm
from client.errors import ExitCode, UserError
from client.store.paths import Folders, home_folders


def attach(
    *,
    swarm: RunningSwarm = None,
    host: str | None = None,
    socket: str | None = None,
    plain: bool = False,
) -> int:
    """Show a running volunteer; leaving the screen leaves it running.

    Parameters
    ----------
    host
        Show the volunteer on this machine, such as user@lab, through SSH.
    socket
        Path of its control socket; with --host, on that machine.
    plain
        One line of text instead of the screen; Ctrl-C leaves it.
    """
    from client.cli.screen import can_draw, show

    if host is None:
        folders: Folders | None = running_home().folders
        if socket:
            path = Path(socket)
        else:
            path, folders = _find(running_home().folders, swarm, ask=can_draw())
        return show(path, folders, plain=plain)
    from client.cli.reach.remote import ask_for_socket, forwarded

    with forwarded(host, socket or ask_for_socket(host, swarm)) as local:
        return show(local, None, plain=plain)


def _find(folders: Folders, swarm: str | None, *, ask: bool) -> tuple[Path, Folders | None]:
    """Return a volunteer's socket and folders: this home's, or one that the user chooses.

    Raises:
        UserError: none fits or several do, and there is nobody to ask, or no choice.
    """
    try:
        return find_socket(folders, swarm), folders
    except UserError as error:
        fitting = [one for one in find_volunteers() if _fits(one, swarm)] if ask else []
        if not fitting or error.exit_code not in (ExitCode.NOT_RUNNING, ExitCode.USAGE):
            raise
        chosen = _chosen(fitting)
        if chosen is None:
            raise
    home = home_folders(Path(chosen.home)) if chosen.home else None
    return Path(chosen.socket), home


def _fits(one: Volunteer, swarm: str | None) -> bool:
    named = swarm is None or swarm == one.swarm_name or one.swarm.startswith(swarm)
    return one.condition == "answers" and named


def _chosen(found: list[Volunteer]) -> Volunteer | None:
    """Ask which volunteer to show; None: none of them."""
    say("these volunteers run on this machine:")
    for number, one in enumerate(found, 1):
        stages = ", ".join(map(str, one.stages)) or "none"
        where = one.service or one.home or "your usual home"
        say(f"{number:3}  {one_line(one.swarm_name)}, {one.state}, stage {stages}; {where}")
    say("show which one? Its number, or nothing for none: ")
    answer = sys.stdin.readline().strip()
    number = int(answer) if answer.isdecimal() and len(answer) < 4 else 0
    return found[number - 1] if 0 < number <= len(found) else None
