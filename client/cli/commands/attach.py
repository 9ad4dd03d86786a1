"""``volunteer attach``: show the volunteer that runs here, or on another machine through SSH."""

from __future__ import annotations

from pathlib import Path

from client.cli.reach.home import find_home
from client.cli.reach.running import find_socket
from client.cli.terminal.parameters import RunningSwarm
from client.errors import ExitCode, UserError


def attach(
    *,
    swarm: RunningSwarm = None,
    host: str | None = None,
    socket: str | None = None,
    record: Path | None = None,
    plain: bool = False,
) -> int:
    """Show a running volunteer; leaving the screen leaves it running.

    Parameters
    ----------
    host
        Show the volunteer on this machine, such as user@lab, through SSH.
    socket
        Path of its control socket; with --host, on that machine.
    record
        Write what the screen is sent to this file, for volunteer replay.
    plain
        One line of text instead of the screen; Ctrl-C leaves it.
    """
    if record is not None and plain:
        raise UserError("--record and --plain do not go together", exit_code=ExitCode.USAGE)
    from client.cli.screen import show

    if host is None:
        folders = find_home().folders
        path = Path(socket) if socket else find_socket(folders, swarm)
        return show(path, folders, record, plain=plain)
    from client.cli.reach.remote import ask_for_socket, forwarded

    with forwarded(host, socket or ask_for_socket(host, swarm)) as local:
        return show(local, None, record, plain=plain)
