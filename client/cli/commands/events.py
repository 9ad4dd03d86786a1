"""``volunteer events``: the events of the running volunteer, for people and for programs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated

from cyclopts import Parameter

from client.cli.reach.home import running_home
from client.cli.reach.running import connect, not_running
from client.cli.terminal.levels import LevelName, at_least, with_level
from client.cli.terminal.output import json_line, versioned
from client.cli.terminal.parameters import RunningSwarm
from client.cli.terminal.when import since as since_time
from client.control.client import ControlClient, NotRunning
from client.control.names import with_names
from client.control.snapshot import EventView

LOOK_S = 0.5


def events(
    *,
    swarm: RunningSwarm = None,
    follow: Annotated[bool, Parameter(alias="-f")] = False,
    since: str | None = None,
    level: LevelName = "info",
    json: bool = False,
) -> None:
    """Print what happened, oldest first: members that came and went, faults and what mended them.

    The volunteer remembers the last thousand events; volunteer logs goes back further.

    Parameters
    ----------
    follow
        Go on until it ends or you interrupt.
    since
        Only what happened since then: 10m (ago), 18:00, or "2026-11-22 08:00".
    level
        Least important events to print; debug: also those for programs.
    json
        Print one JSON document per line.
    """
    earliest = since_time(since) if since is not None else 0.0
    folders = running_home().folders
    with connect(folders, swarm) as node:
        try:
            _print_all(node, follow, earliest, level, json)
        except NotRunning as error:
            if not follow:
                raise not_running(folders, swarm) from error


def _print_all(
    node: ControlClient, follow: bool, earliest: float, level: LevelName, as_json: bool
) -> None:
    last = 0
    while True:
        batch = node.events(last)
        names = node.status().names if batch.events and not as_json else {}
        for event in batch.events:
            if event.time >= earliest and at_least(event.level, level):
                print(json_line(versioned(event)) if as_json else _text(event, names), flush=True)
        if batch.last == last:
            if not follow:
                return
            time.sleep(LOOK_S)
        last = batch.last


def _text(event: EventView, names: Mapping[str, str]) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(event.time))
    words = with_names(event.words, event.members, names)
    return f"{clock} {event.topic:<10} {with_level(event.level, words)}"
