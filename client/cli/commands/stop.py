"""``volunteer stop``: end the volunteer in order, without waiting for it and without asking."""

from __future__ import annotations

from msgspec import Struct

from client.cli.reach.home import running_home
from client.cli.reach.running import connect
from client.cli.terminal.output import print_json, printable, say
from client.cli.terminal.parameters import AsJson, RunningSwarm


class Stopped(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer stop --json``."""

    swarm: str
    swarm_name: str
    peer: str
    pid: int
    stopping: bool = True


def stop(*, swarm: RunningSwarm = None, json: AsJson = False) -> None:
    """Ask the volunteer to hand over, save and end; returns at once.

    As volunteer finish --yes --wait-s 0, for scripts: finish also says what leaving costs the
    swarm, asks if it is much, and waits until it is done.
    """
    with connect(running_home().folders, swarm) as node:
        node.stop()
        who = node.greeting
    if json:
        print_json(Stopped(swarm=who.swarm, swarm_name=who.swarm_name, peer=who.peer, pid=who.pid))
        return
    print(printable(f"{who.swarm_name}: stopping"))
    say("it drains and saves first; volunteer status --watch shows its progress")
