"""The founder changes a run: real processes train on, and turn at one step as one process does."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from client.cli.founding.options import RunChoices
from client.errors import ExitCode
from client.lab.bench.efficiency import training_plan
from client.lab.local_swarm import LocalSwarm, Member
from model_zoo.data import Corpus
from model_zoo.reference import train_reference
from model_zoo.specs.course import Turn
from protocol.invite import SwarmFile
from tests.support.e2e_local import (
    HOST,
    found,
    in_state,
    killed_at_the_end,
    parsed,
    volunteer,
    wait_for,
)

pytestmark = pytest.mark.long
FLAGS = ("--listen-host", HOST, "--threads", "1")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vol") as name:
        yield Path(name)


@pytest.fixture
def processes(folder: Path) -> Iterator[LocalSwarm]:
    with killed_at_the_end(folder) as swarm:
        yield swarm


def _run(steps: int) -> RunChoices:
    return RunChoices(
        optimizer="adamw",
        name="e2e",
        stages=2,
        steps=steps,
        sequences=2,
        microbatches=4,
        checkpoint_every=1,
        measure=False,
        boundary_codec="fp32",
        averaging_codec="fp32",
        dual_homing=False,
    )


def _start(processes: LocalSwarm, count: int) -> list[Member]:
    first = processes.start("volunteer-1", FLAGS)
    first.wait_until_it_answers(60.0)
    rest = [processes.start(f"volunteer-{n}", FLAGS) for n in range(2, count + 1)]
    return [first, *rest]


class Losses:
    """The losses of the steps, as a volunteer's events tell them."""

    def __init__(self, member: Member) -> None:
        self.of: dict[int, float] = {}
        self._member = member

    def until(self, steps: int, members: list[Member]) -> list[float]:
        def all_told() -> bool | None:
            for event in self._member.new_events():
                if event.kind == "StepCommitted":
                    self.of[int(str(event.data["step"]))] = float(str(event.data["loss"]))
            return len(self.of) >= steps or None

        wait_for(all_told, f"the losses of {steps} steps", members)
        return [self.of[step] for step in range(steps)]


def _agreed_from(members: list[Member]) -> int:
    """The step from which every volunteer says that the newest amendment holds."""

    def said() -> int | None:
        found = set[int | None]()
        for member in members:
            now = member.snapshot()
            found.add(now.amendments[-1].from_step if now and now.amendments else None)
        (one, *others) = found
        return None if others else one

    return wait_for(said, "an amendment that all have agreed on", members)


def _expected(swarm: SwarmFile, steps: int, *turns: Turn) -> tuple[float, ...]:
    plan = replace(training_plan(swarm.manifest), steps=steps, turns=turns)
    return train_reference(plan, Corpus.from_stdlib(), threads=1).losses


def test_a_finished_run_is_extended_and_its_rate_changed(
    folder: Path, processes: LocalSwarm
) -> None:
    swarm = found(folder, "volunteer-1", _run(steps=6))
    members = _start(processes, 2)
    losses = Losses(members[0])
    for member in members:
        in_state(member, members, "done")
    losses.until(6, members)

    stranger = volunteer(members[1].home, "amend", "--steps", "12", "--yes")
    assert stranger.returncode == ExitCode.REFUSED
    assert "only the founder" in stranger.stderr
    few = volunteer(members[0].home, "amend", "--steps", "6", "--yes")
    assert few.returncode != 0
    assert "has done 6 steps" in few.stderr

    told = parsed(volunteer(members[0].home, "amend", "--steps", "12", "--yes", "--json"))
    assert told["signed"]
    assert told["amendment"]["words"] == "the run is extended from 6 to 12 steps"
    for member in members:
        in_state(member, members, "done", step=12)
    losses.until(12, members)

    rate = 2 * swarm.manifest.optimizer.lr
    words = ("--learning-rate", str(rate), "--schedule", "constant", "--steps", "40", "--yes")
    asked = parsed(volunteer(members[0].home, "amend", *words, "--json"))
    turn = _agreed_from(members)
    assert 12 + 6 <= turn == asked["earliest"]
    for member in members:
        in_state(member, members, "done", step=40)
    found_losses = losses.until(40, members)
    changed = structs.replace(
        swarm.manifest.optimizer,
        lr=rate,
        min_lr=swarm.manifest.optimizer.min_lr * 2,
        schedule="constant",
        decay_steps=40,
    )
    expected = _expected(swarm, 40, Turn(turn, changed))
    assert found_losses == pytest.approx(expected, rel=1e-5)
    assert found_losses[turn + 4 :] != pytest.approx(_expected(swarm, 40)[turn + 4 :], rel=1e-5)
    report = volunteer(members[1].home, "status").stdout
    assert f"(from step {turn} on)" in report
    events = volunteer(members[1].home, "logs").stdout
    assert "the founder says: the run is extended from 6 to 12 steps" in events
    assert "the stages have agreed" in events
