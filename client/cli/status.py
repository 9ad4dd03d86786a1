"""``volunteer status``: what the volunteer on this machine is doing."""

from __future__ import annotations

import sys
import time

import msgspec

from client.cli.home import find_home
from client.cli.output import print_json, printable
from client.cli.running import connect, not_running
from client.cli.status_text import status_report
from client.control.client import ControlClient, NotRunning
from client.control.snapshot import Snapshot

WATCH_S = 1.0


def status(*, swarm: str | None = None, json: bool = False, watch: bool = False) -> None:
    """Show what the volunteer on this machine is doing.

    Parameters
    ----------
    swarm
        Name or beginning of the id of the swarm, where several volunteers run.
    json
        Print JSON; with --watch one document per line.
    watch
        Go on until it ends or you interrupt.
    """
    with connect(find_home().folders.runtime, swarm) as node:
        try:
            _print(node.status(), json, watch)
            if watch:
                _follow(node, json)
        except NotRunning as error:
            if not watch:
                raise not_running(swarm) from error


def _follow(node: ControlClient, as_json: bool) -> None:
    while True:
        time.sleep(WATCH_S)
        _print(node.status(), as_json, watch=True)


def _print(now: Snapshot, as_json: bool, watch: bool) -> None:
    if as_json and watch:
        print(msgspec.json.encode(now).decode(), flush=True)
    elif as_json:
        print_json(now)
    else:
        clear = "\x1b[H\x1b[J" if watch and sys.stdout.isatty() else ""
        print(clear + printable(status_report(now)), flush=True)
