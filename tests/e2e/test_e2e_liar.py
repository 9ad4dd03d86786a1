"""Volunteers as processes, one of which lies about its gradients: a robust rule, and the sum."""

import statistics
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from client.cli.founding.options import OptimizerChoices, RunChoices
from client.control.snapshot import Snapshot
from client.lab.local_swarm import LocalSwarm, Member
from client.lab.reference import train_reference
from protocol.invite import SwarmFile
from tests.hostile.member import LIES_FROM
from tests.support.cli_process import REPOSITORY
from tests.support.e2e_local import HOST, beyond, found, killed_at_the_end, wait_for
from tests.support.texts import corpus_of

pytestmark = pytest.mark.slow
FLAGS = ("--listen-host", HOST, "--threads", "1", "--seats", "1")
STEPS = 100
"""After so many the learning rate is at its last."""
LONGEST = 5000
"""The run goes on until the liar has lied for long: it may come late, or be set aside for a minute,
on an overloaded machine."""
LYING = 60
"""Steps for which the liar lies, at least."""
MICROBATCHES = 16
LAST = 10
"""Steps over which the loss at the end is averaged."""


class ClosedSteps:
    """What members have told of the steps that they closed."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self._counted: dict[int, dict[str, int]] = {}

    def hear(self, members: list[Member]) -> None:
        """Take the members' events since the last call."""
        for member in members:
            for event in member.new_events():
                if event.kind == "StepCommitted":
                    self.losses[int(str(event.data["step"]))] = float(str(event.data["loss"]))
                elif event.kind == "StageClosed":
                    counted = self._counted.setdefault(int(str(event.data["version"])), {})
                    counted[member.name] = int(str(event.data["counted"]))

    def with_others(self, members: list[Member], since: int, microbatches: int) -> list[int]:
        """Return the later versions into which work of others than all these members has gone.

        Args:
            members: those that tell.
            since: the newest version of no interest.
            microbatches: of a step.
        """
        return [
            version
            for version, counted in self._counted.items()
            if version > since
            and len(counted) == len(members)
            and sum(counted.values()) < microbatches
        ]

    def last_losses(self, count: int, end: int) -> list[float]:
        """Return the losses of the last steps before ``end``."""
        return [self.losses[step] for step in sorted(self.losses) if step < end][-count:]


def _found(folder: Path, aggregation: str, schedule: str | None = None) -> SwarmFile:
    run = RunChoices(
        optimizer="adamw",
        name="liar",
        stages=1,
        steps=LONGEST,
        sequences=2,
        microbatches=MICROBATCHES,
        redundancy=4,
        checkpoint_every=STEPS,
        measure=False,
        dual_homing=False,
        aggregation=aggregation,
    )
    optimizer = OptimizerChoices(schedule=schedule, warmup_steps=STEPS // 10, decay_steps=STEPS)
    return found(folder, "honest-1", run, optimizer=optimizer)


def _started(swarm: LocalSwarm, folder: Path, lie_from: int) -> tuple[list[Member], int]:
    """Start three honest volunteers, and a liar that is honest at first; return the honest, and the
    step at which it begins to lie.

    It lies from a step on, or a little later, once all serve: before that two of them average
    alone, and two have no majority. All start at once, because the first one trains at once.
    """
    first = swarm.start("honest-1", FLAGS)
    begin = folder / "lie"
    swarm.start(
        "liar",
        FLAGS,
        variables={"PYTHONPATH": str(REPOSITORY), LIES_FROM: str(begin)},
        within=[sys.executable, "-m", "tests.hostile.member", "contribution-x-minus-10"],
    )
    honest = [first, *(swarm.start(f"honest-{number}", FLAGS) for number in (2, 3))]

    def all_serve() -> Snapshot | None:
        now = first.snapshot()
        serving = now and [one for one in now.stages[0].replicas if one.state == "serving"]
        return now if serving and len(serving) == 4 else None

    wait_for(all_serve, "four replicas", honest)
    now = wait_for(lambda: beyond(first, lie_from - 1), f"step {lie_from}", honest)
    begin.touch()
    return honest, now.step


def _of_honest_ones(swarm: SwarmFile, end: int) -> float:
    """The mean loss of the last steps where nobody lies."""
    plan = replace(swarm.manifest, steps=end)
    honest = train_reference(plan, corpus_of("stdlib"), threads=1)
    return statistics.mean(honest.losses[-LAST:])


def test_a_run_with_centred_clipping_learns_beside_a_liar(folder: Path) -> None:
    """Within 5 % of the loss of honest volunteers (1 and 2 % were seen): a quarter of each step's
    samples is lost."""
    swarm = _found(folder, "centred-clipping")
    told = ClosedSteps()
    with killed_at_the_end(folder) as processes:
        members, began = _started(processes, folder, lie_from=35)
        end = max(STEPS, began + LYING)

        def ended() -> bool | None:
            told.hear(members)
            return True if max(told.losses, default=0) >= end - 1 else None

        wait_for(ended, f"{end} steps", members)
    reached = statistics.mean(told.last_losses(LAST, end))
    assert reached < 1.05 * _of_honest_ones(swarm, end)


@pytest.mark.long
def test_the_same_liar_ruins_the_exact_sum(folder: Path) -> None:
    """It ends at 4.9 to 8.1, where honest volunteers reach 2.9."""
    swarm = _found(folder, "sum", "constant")
    told = ClosedSteps()
    with killed_at_the_end(folder) as processes:
        members, began = _started(processes, folder, lie_from=0)

        def ruined() -> int | None:
            told.hear(members)
            with_lies = told.with_others(members, began, MICROBATCHES)
            return max(with_lies) if len(with_lies) >= LYING else None

        end = wait_for(ruined, f"{LYING} steps with lies", members)
    reached = statistics.mean(told.last_losses(LAST, end))
    assert reached > 1.3 * _of_honest_ones(swarm, end)
