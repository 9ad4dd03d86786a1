"""Four volunteers as processes whose contributions nobody sees: one is killed, the others go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.cli.founding.options import RunChoices
from client.control.snapshot import Snapshot
from client.lab.bench.efficiency import training_plan
from client.lab.local_swarm import Member
from client.lab.reference import train_reference
from model_zoo.datasets.build import open_source
from tests.support.e2e_local import HOST, found, killed_at_the_end, wait_for

pytestmark = pytest.mark.long
FLAGS = ("--listen-host", HOST, "--threads", "1", "--seats", "1")
STEPS = 150
KILL_AT = 50
RUN = RunChoices(
    name="secret",
    stages=1,
    steps=STEPS,
    sequences=2,
    microbatches=12,
    redundancy=4,
    checkpoint_every=STEPS,
    measure=False,
    dual_homing=False,
    private=True,
    aggregation="secure",
)


class Told:
    """What the volunteers have said of steps: losses, and the hashes of each version."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.hashes: dict[int, set[str]] = {}
        self.made: dict[int, int] = {}

    def listen(self, members: list[Member]) -> int:
        """Take the new events; return the newest version that all of the members have made."""
        for member in members:
            for event in member.new_events():
                if event.kind == "StepCommitted":
                    self.losses[int(str(event.data["step"]))] = float(str(event.data["loss"]))
                if event.kind == "StageClosed":
                    version = int(str(event.data["version"]))
                    self.hashes.setdefault(version, set()).add(str(event.data["hash"]))
                    self.made[id(member)] = version
        return min((self.made.get(id(member), 0) for member in members), default=0)


def test_a_secret_run_loses_a_member_and_goes_on_with_one_state(folder: Path) -> None:
    file = found(folder, "v1", RUN)
    told = Told()
    with killed_at_the_end(folder) as swarm:
        members = [swarm.start("v1", FLAGS)]
        members[0].wait_until_it_answers(60.0)
        members += [swarm.start(name, FLAGS) for name in ("v2", "v3", "v4")]

        def four_serve() -> Snapshot | None:
            now = members[0].snapshot()
            serving = now and [one for one in now.stages[0].replicas if one.state == "serving"]
            return now if serving and len(serving) == 4 else None

        wait_for(four_serve, "four replicas", members)
        wait_for(lambda: told.listen(members) >= KILL_AT or None, f"{KILL_AT} steps", members)
        members.pop(2).kill()
        wait_for(lambda: told.listen(members) >= STEPS or None, f"{STEPS} steps", members)
    assert len(told.hashes) >= STEPS
    assert all(len(hashes) == 1 for hashes in told.hashes.values())
    alone = train_reference(training_plan(file.manifest), open_source("stdlib"), threads=1)
    last = sorted(told.losses)[-10:]  # of some steps a busy volunteer may not tell the loss
    reached, expected = (
        sum(losses[step] for step in last) for losses in (told.losses, alone.losses)
    )
    assert len(last) == 10
    assert abs(reached - expected) < 0.01 * expected
