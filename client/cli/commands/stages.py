"""``volunteer stages``: the stages of the model and their replicas."""

from __future__ import annotations

from msgspec import Struct

from client.cli.reach.home import running_home
from client.cli.reach.running import connect
from client.cli.terminal.output import print_json, printable
from client.cli.terminal.parameters import AsJson, RunningSwarm
from client.cli.terminal.table import aligned
from client.control.names import named
from client.control.snapshot import Snapshot, StageView


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
        now = node.status()
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
    rows = [_row(stage, now) for stage in now.stages]
    for line in aligned(["stage", "layers", "version", "serving", "rate", "held by"], rows):
        print(printable(line))


def _row(stage: StageView, now: Snapshot) -> list[str]:
    serving = [replica for replica in stage.replicas if replica.state == "serving"]
    holders = [
        ("this volunteer" if replica.peer == now.peer else named(replica.peer, now.names))
        + ("" if replica.state == "serving" else f" ({replica.state})")
        for replica in stage.replicas
    ]
    return [
        str(stage.stage),
        str(stage.layers),
        str(stage.version),
        str(len(serving)) if serving else "nobody",
        f"{sum(replica.rate for replica in serving):.2g}/s",
        ", ".join(holders) or "-",
    ]
