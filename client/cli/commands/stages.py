"""``volunteer stages``: the stages of the model and their replicas."""

from __future__ import annotations

from msgspec import Struct

from client.cli.reach.home import running_home
from client.cli.reach.running import connect
from client.cli.terminal.output import print_json
from client.cli.terminal.parameters import AsJson, RunningSwarm
from client.control.snapshot import StageView
from client.views.report import stages_report


class Stages(Struct, frozen=True, kw_only=True):
    """Answer of ``volunteer stages --json``."""

    swarm: str
    swarm_name: str
    peer: str
    step: int
    steps: int
    stages: list[StageView]
    names: dict[str, str]
    """Of members, by peer id."""
    schema_version: int = 1


def stages(*, swarm: RunningSwarm = None, json: AsJson = False) -> None:
    """List the stages of the model: how many serve each, how fast, and who."""
    with connect(running_home().folders, swarm) as node:
        now, matches = node.status(), node.matches()
    if json:
        answer = Stages(
            swarm=now.swarm,
            swarm_name=now.swarm_name,
            peer=now.peer,
            step=now.step,
            steps=now.steps,
            stages=now.stages,
            names=now.names,
        )
        print_json(answer)
        return
    print(stages_report(now, matches))
