"""``volunteer status``: the state of the volunteer on this machine."""

from __future__ import annotations

import time

from client.cli.reach.home import running_home
from client.cli.reach.running import (
    connect,
    ending_words,
    find_socket,
    not_running,
    wait_for_ending,
)
from client.cli.terminal.output import print_moment, printable, say
from client.cli.terminal.parameters import RunningSwarm
from client.cli.terminal.status_text import progress_line, status_report
from client.control.client import ControlClient, NotRunning
from client.control.snapshot import Snapshot

WATCH_S = 1.0


def status(
    *,
    swarm: RunningSwarm = None,
    json: bool = False,
    watch: bool = False,
    plain: bool = False,
    socket: bool = False,
) -> None:
    """Show what the volunteer on this machine is doing.

    Parameters
    ----------
    json
        Print JSON; with --watch one document per line.
    watch
        Go on until it ends or you interrupt.
    plain
        One line; with --watch a further one whenever the step or the state changes.
    socket
        Print the path of its control socket instead.
    """
    folders = running_home().folders
    if socket:
        print(find_socket(folders, swarm))
        return
    with connect(folders, swarm) as node:
        try:
            shown = _print(node.status(), json, watch, plain)
            while watch:
                shown = _look_again(node, json, plain, shown)
        except NotRunning as error:
            if not watch:
                raise not_running(folders, swarm) from error
            ending = wait_for_ending(folders, node.greeting.pid)
            say(ending_words(ending) if ending else "the volunteer has ended")


def _look_again(
    node: ControlClient, as_json: bool, plain: bool, shown: tuple[str, int]
) -> tuple[str, int]:
    time.sleep(WATCH_S)
    now = node.status()
    if plain and not as_json and shown == (now.state, now.step):
        return shown
    return _print(now, as_json, True, plain)


def _print(now: Snapshot, as_json: bool, watch: bool, plain: bool) -> tuple[str, int]:
    """Print a snapshot; return the values that trigger the next plain line when they change."""
    if plain and not as_json:
        print(printable(progress_line(now)), flush=True)
    else:
        print_moment(now, status_report, as_json=as_json, watch=watch)
    return now.state, now.step
