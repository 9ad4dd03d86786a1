"""Resume after a pause.

$ volunteer resume  # now
"""

from __future__ import annotations

from msgspec import Struct

from client.cli.reach.home import running_home
from client.cli.reach.running import connect
from client.cli.terminal.output import print_json, printable
from client.cli.terminal.parameters import AsJson, RunningSwarm
from client.control.snapshot import PauseView


class Resumed(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer resume --json``."""

    swarm: str
    swarm_name: str
    peer: str
    resumed: bool
    """False: it was not paused by you."""
    paused: PauseView | None
    """The remaining obstacle, such as battery or schedule."""


def resume(*, swarm: RunningSwarm = None, json: AsJson = False) -> None:
    """Take part again: the matching finds a stage for this machine."""
    with connect(running_home().folders, swarm) as node:
        resumed, who = node.resume(), node.greeting
        held = node.status().paused
    if json:
        answer = Resumed(
            swarm=who.swarm,
            swarm_name=who.swarm_name,
            peer=who.peer,
            resumed=resumed,
            paused=held,
        )
        print_json(answer)
        return
    if held is not None:
        words = f"still paused: {held.reason}"
    else:
        words = "resumed" if resumed else "was not paused"
    print(printable(f"{who.swarm_name}: {words}"))
