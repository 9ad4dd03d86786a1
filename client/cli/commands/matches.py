"""``volunteer matches``: the matching of stages to volunteers, with reasons."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated

from cyclopts import Parameter

from client.cli.matching.matches_text import whole_report
from client.cli.reach.home import running_home
from client.cli.reach.running import connect, not_running
from client.cli.terminal.output import print_moment
from client.control.client import NotRunning
from client.errors import ExitCode

WATCH_S = 1.0


def matches(
    *,
    swarm: str | None = None,
    json: bool = False,
    watch: bool = False,
    everything: Annotated[bool, Parameter(name="--all")] = False,
) -> int:
    """Show who does which part of the model and why, then the numbers behind it.

    Parameters
    ----------
    swarm
        Name or beginning of the id of the swarm, where there are several.
    json
        Print JSON; with --watch one document per line.
    watch
        Go on until it ends or you interrupt.
    everything
        Show explanations for developers, too.
    """
    home = running_home()
    with connect(home.folders, swarm) as node:
        try:
            while True:
                now = node.matches(everything)
                report = partial(whole_report, node.status())
                print_moment(now, report, as_json=json, watch=watch)
                if not watch:
                    break
                time.sleep(WATCH_S)
        except NotRunning as error:
            if not watch:
                raise not_running(home.folders, swarm) from error
    return ExitCode.OK
