"""Pause: free memory and GPU, stay in the swarm.

$ volunteer pause  # until volunteer resume
$ volunteer pause --for 2h  # resume automatically in two hours
$ volunteer pause --until 18:00 --reason "a meeting"  # resume automatically at 18:00

It holds over restarts. Others take the work over; nothing that was computed is lost.
"""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from client.cli.reach.home import running_home
from client.cli.reach.running import connect
from client.cli.terminal.answer import Answer, answered, of_node
from client.cli.terminal.when import clock, when
from client.errors import UsageError


@answered
def pause(
    *,
    until: Annotated[str | None, Parameter(name=("--until", "--for"))] = None,
    reason: str = "",
    discard: bool = False,
) -> Answer:
    """Give up every stage in order, free memory and GPU, and stay connected; until you resume.

    Parameters
    ----------
    until
        Go on by itself then, such as 18:00 or "2026-11-22 08:00", or after so long, such as 2h.
    reason
        The reason, shown in the status.
    discard
        Pause also if the disk does not take the last version and nobody else has it.
    """
    end = None if until is None else when(until, "--for or --until", past=False)
    if end is not None and end <= time.time():
        raise UsageError(f"--until: {until} has passed", "give a later time")
    with connect(running_home().folders) as node:
        view, who = node.pause(end, reason, discard=discard), node.greeting
    ends = f"until {clock(view.until)}" if view.until else "until: volunteer resume"
    return Answer(of_node(who, paused=view), f"{who.swarm_name}: paused {ends}")
