"""Pause: free memory and GPU, stay in the swarm.

$ volunteer pause  # until volunteer resume
$ volunteer pause --for 2h --reason "a meeting"  # resume automatically in two hours

It holds over restarts. Others take the work over; nothing that was computed is lost.
"""

import time
from typing import Annotated

from cyclopts import Parameter

from client.cli.reach.running import connect
from client.cli.terminal.answer import Answer, answered, of_node
from client.cli.terminal.parameters import Duration
from client.quantities import clock


@answered
def pause(
    *,
    duration: Annotated[Duration, Parameter(name="--for")] = None,
    reason: str = "",
    discard: bool = False,
) -> Answer:
    """Give up every stage in order, free memory and GPU, and stay connected; until you resume.

    Args:
        duration: Go on by itself after so long, such as 2h or 1h30m.
        reason: The reason, shown in the status.
        discard: Pause also if the disk does not take the last version and nobody else has it.
    """
    end = None if duration is None else time.time() + duration
    with connect() as node:
        view, who = node.pause(end, reason, discard=discard), node.greeting
    ends = f"until {clock(view.until)}" if view.until else "until: volunteer resume"
    return Answer(of_node(who, paused=view), f"{who.swarm_name}: paused {ends}")
