"""Amendments in simulated swarms of real executors: all stages turn at one step, to the bit.

I2 and I5 are checked on every commit by the world; that all stages use the same learning rate from
the same step on shows in the losses, which are those of one process with the same turn.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import pytest
from msgspec import structs

from client.lab.reference import TrainingPlan
from client.lab.simulate.peer import SimPeer
from client.lab.simulate.training import SWARM, TrainingWorld
from model_zoo.specs.course import Turn
from protocol.wire.fields import Envelope
from tests.support.amended_runs import amendment, run_of
from tests.support.cases import usual
from tests.support.tensor_swarms import LIMIT_S, Lab, largest_difference, plan_for

STEPS = 30
CLOSE = 1e-5
HOT = {"lr": 6e-3, "min_lr": 6e-4}
NOTICE = 6
"""Steps within which all have heard of an amendment."""


def turned(plan: TrainingPlan, world: TrainingWorld, *changes: dict[str, object]) -> TrainingPlan:
    """The plan of one process that turns where the swarm has agreed to."""
    agreed = {peer.amendments.agreed for peer in alive(world) if peer.amendments}
    (entries,) = agreed  # all volunteers have agreed on the same
    assert len(entries) == len(changes)
    turns = tuple(
        Turn(entry.from_step, structs.replace(plan.optimizer, **fields))
        for entry, fields in zip(entries, changes, strict=True)
    )
    return replace(plan, turns=turns)


def alive(world: TrainingWorld) -> list[SimPeer]:
    return [peer for peer in world.peers.values() if peer.alive]


def when(world: TrainingWorld, version: int, action: partial[None]) -> None:
    """Do something once the first stage has come to a version."""

    def look() -> None:
        newest = max(peer.seat.step for peer in alive(world) if peer.stage == 0 and peer.seat)
        if newest >= version:
            action()
        else:
            world.after(0.05, look)

    world.after(0.05, look)


def losses(world: TrainingWorld, steps: int) -> list[float]:
    world.run(LIMIT_S)
    return [world.losses[step] for step in range(steps)]


class Amended:
    """A run of a plan, and a world whose founder may amend it."""

    def __init__(
        self, lab: Lab, *, stages: int = 2, replicas: int = 2, steps: int = STEPS, seed: int = 0
    ) -> None:
        self.lab, self.plan = lab, plan_for("gpt", stages, steps)
        self.run = run_of(self.plan)
        self.world = lab.world(self.plan, replicas, seed=seed, amended=self.run)

    def hear(self, said: Envelope, peers: Iterable[SimPeer] | None = None) -> None:
        for peer in alive(self.world) if peers is None else peers:
            self.world.amend(peer, [said])

    def hears_at(self, version: int, said: Envelope, peers: Iterable[SimPeer]) -> None:
        when(self.world, version, partial(self.hear, said, peers))

    def hot(self, from_step: int) -> Envelope:
        return amendment(self.run, SWARM, from_step=from_step, **HOT)

    def of_stage(self, stage: int) -> list[SimPeer]:
        return [peer for peer in alive(self.world) if peer.stage == stage]

    def ends_as(self, *changes: dict[str, object]) -> tuple[Turn, ...]:
        """Run to the end, with the losses of one process that turns likewise; return the turns."""
        found = losses(self.world, STEPS)
        expected = turned(self.plan, self.world, *changes)
        assert largest_difference(found, self.lab.reference(expected)) < CLOSE
        return expected.turns


@pytest.mark.parametrize(
    ("stages", "seed"), usual(1, [(4, 0), (4, 1), (1, 0), (1, 1), (2, 0), (2, 1)])
)
def test_a_rate_turns_everywhere_at_one_step(lab: Lab, stages: int, seed: int) -> None:
    """One volunteer of the first stage hears of it, and tells all others."""
    made = Amended(lab, stages=stages, seed=seed)
    named = 3 + seed + NOTICE
    made.hears_at(3 + seed, made.hot(named), made.of_stage(0)[:1])
    assert made.ends_as(HOT)[0].from_step == named
    found = losses(made.world, STEPS)
    assert largest_difference(found, lab.reference(made.plan)) > 10 * CLOSE


def test_two_amendments_after_each_other(lab: Lab) -> None:
    """The second one waits for the step that the founder names."""
    made = Amended(lab)
    one, cold = made.hot(2 + NOTICE), {"lr": 1e-4, "min_lr": 1e-4}
    two = amendment(made.run, SWARM, number=2, before=one, from_step=18, **cold)
    first = alive(made.world)[:1]
    made.hear(two, first)  # out of order: it counts when the first one is here
    made.hears_at(2, one, first)
    turns = made.ends_as(HOT, cold)
    assert turns[0].from_step < turns[1].from_step == 18


@pytest.mark.parametrize("seed", usual(1, range(2)))
def test_deaths_and_late_members_change_no_loss(lab: Lab, seed: int) -> None:
    """Newcomers come before, while and after the stages agree, and know of nothing; one replica of
    each stage dies."""
    made = Amended(lab, replicas=3, seed=seed)
    world = made.world
    hears = world.random.sample(alive(world), 2)
    made.hears_at(4, made.hot(4 + NOTICE), hears)
    victims = [next(p for p in made.of_stage(s) if p not in hears) for s in range(2)]
    for victim in victims:
        when(world, 5 + victim.stage + seed, partial(world.kill, victim))
    newcomers: list[SimPeer] = []
    for stage, version in ((0, 2), (1, 6), (0, 14), (1, 18)):
        name = f"new {stage} {version}"

        def join(stage: int = stage, name: str = name) -> None:
            newcomers.append(world.join(stage, name))

        when(world, version, partial(join))
    world.run(LIMIT_S)
    assert all(peer.serving for peer in newcomers)
    reference = lab.reference(turned(made.plan, world, HOT))
    found = [world.losses.get(step, reference[step]) for step in range(STEPS)]
    assert len(set(range(STEPS)) - set(world.losses)) <= 1
    assert largest_difference(found, reference) < CLOSE, f"seed {seed}"


def test_a_finished_run_goes_on(lab: Lab) -> None:
    made = Amended(lab, steps=12)
    losses(made.world, 12)
    made.hear(amendment(made.run, SWARM, steps=24))
    assert not made.world.finished()
    found = losses(made.world, 24)
    assert largest_difference(found, lab.reference(replace(made.plan, steps=24))) < CLOSE


@pytest.mark.parametrize("stage", usual(1, [0, 1]))
def test_who_says_that_it_was_never_agreed_on_stops_nobody(lab: Lab, stage: int) -> None:
    made = Amended(lab, replicas=3)
    liar = made.of_stage(stage)[0]
    assert liar.seat is not None
    liar.seat.leader._amended = tuple
    made.hear(made.hot(NOTICE))
    made.ends_as(HOT)
