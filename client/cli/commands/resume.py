"""Resume after a pause.

$ volunteer resume  # now
"""

from __future__ import annotations

from client.cli.reach.home import running_home
from client.cli.reach.running import connect
from client.cli.terminal.output import print_answer, printable
from client.cli.terminal.parameters import AsJson, RunningSwarm


def resume(*, swarm: RunningSwarm = None, json: AsJson = False) -> None:
    """Take part again: the matching finds a stage for this machine."""
    with connect(running_home().folders, swarm) as node:
        resumed, who = node.resume(), node.greeting
        held = node.status().paused  # such as battery or schedule
    if json:
        print_answer(who, resumed=resumed, paused=held)
        return
    if held is not None:
        words = f"still paused: {held.reason}"
    else:
        words = "resumed" if resumed else "was not paused"
    print(printable(f"{who.swarm_name}: {words}"))
