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
from tests.support.amended_runs import Run, amendment, run_of
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


def hot(run: Run, from_step: int) -> Envelope:
    return amendment(run, SWARM, from_step=from_step, **HOT)


def alive(world: TrainingWorld) -> list[SimPeer]:
    return [peer for peer in world.peers.values() if peer.alive]


def hear(world: TrainingWorld, peers: Iterable[SimPeer], said: Envelope) -> None:
    for peer in peers:
        world.amend(peer, [said])


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


@pytest.mark.parametrize("stages", usual(1, [4, 1, 2]))
@pytest.mark.parametrize("seed", usual(1, range(2)))
def test_a_rate_turns_everywhere_at_one_step(lab: Lab, stages: int, seed: int) -> None:
    """One volunteer of the first stage hears of it, and tells all others."""
    plan = plan_for("gpt", stages, STEPS)
    run = run_of(plan)
    world = lab.world(plan, 2, seed=seed, amended=run)
    first = next(peer for peer in world.peers.values() if peer.stage == 0)
    named = 3 + seed + NOTICE
    when(world, 3 + seed, partial(hear, world, [first], hot(run, named)))
    found = losses(world, STEPS)
    expected = turned(plan, world, HOT)
    assert expected.turns[0].from_step == named
    assert largest_difference(found, lab.reference(expected)) < CLOSE
    assert largest_difference(found, lab.reference(plan)) > 10 * CLOSE


def test_two_amendments_after_each_other(lab: Lab) -> None:
    """The second one waits for the step that the founder names."""
    plan = plan_for("gpt", 2, STEPS)
    run = run_of(plan)
    world = lab.world(plan, 2, amended=run)
    one = hot(run, 2 + NOTICE)
    cold = {"lr": 1e-4, "min_lr": 1e-4}
    two = amendment(run, SWARM, number=2, before=one, from_step=18, **cold)
    hear(world, alive(world)[:1], two)  # out of order: it counts when the first one is here
    when(world, 2, partial(hear, world, alive(world)[:1], one))
    found = losses(world, STEPS)
    expected = turned(plan, world, HOT, cold)
    assert expected.turns[0].from_step < expected.turns[1].from_step == 18
    assert largest_difference(found, lab.reference(expected)) < CLOSE


@pytest.mark.parametrize("seed", usual(1, range(2)))
def test_deaths_and_late_members_change_no_loss(lab: Lab, seed: int) -> None:
    """Newcomers come before, while and after the stages agree, and know of nothing; one replica of
    each stage dies."""
    plan = plan_for("gpt", 2, STEPS)
    run = run_of(plan)
    world = lab.world(plan, 3, seed=seed, amended=run)
    hears = world.random.sample(alive(world), 2)
    when(world, 4, partial(hear, world, hears, hot(run, 4 + NOTICE)))
    victims = [next(p for p in alive(world) if p.stage == s and p not in hears) for s in range(2)]
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
    reference = lab.reference(turned(plan, world, HOT))
    found = [world.losses.get(step, reference[step]) for step in range(STEPS)]
    assert len(set(range(STEPS)) - set(world.losses)) <= 1
    assert largest_difference(found, reference) < CLOSE, f"seed {seed}"


def test_a_finished_run_goes_on(lab: Lab) -> None:
    plan = plan_for("gpt", 2, 12)
    run = run_of(plan)
    world = lab.world(plan, 2, amended=run)
    losses(world, 12)
    said = amendment(run, SWARM, steps=24)
    hear(world, alive(world), said)
    assert not world.finished()
    found = losses(world, 24)
    assert largest_difference(found, lab.reference(replace(plan, steps=24))) < CLOSE


def test_a_run_that_is_shortened_ends_there(lab: Lab) -> None:
    plan = plan_for("gpt", 2, STEPS)
    run = run_of(plan)
    world = lab.world(plan, 2, amended=run)
    hear(world, alive(world), amendment(run, SWARM, steps=9))
    losses(world, 9)
    assert max(world.losses) == 8


def test_a_founder_who_contradicts_himself_changes_nothing(lab: Lab) -> None:
    """Some hear of one, some of the other, before anything is agreed: all stay bit-identical."""
    plan = plan_for("gpt", 2, STEPS)
    run = run_of(plan)
    world = lab.world(plan, 2, amended=run)
    one, other = amendment(run, SWARM, **HOT), amendment(run, SWARM, lr=1e-4, min_lr=1e-4)
    hear(world, alive(world), one)
    hear(world, alive(world), other)
    found = losses(world, STEPS)
    assert not any(peer.amendments.agreed for peer in alive(world) if peer.amendments)
    assert largest_difference(found, lab.reference(plan)) < CLOSE


@pytest.mark.parametrize("seed", usual(1, range(2)))
def test_what_was_agreed_before_a_contradiction_stays(lab: Lab, seed: int) -> None:
    plan = plan_for("gpt", 2, STEPS)
    run = run_of(plan)
    world = lab.world(plan, 2, seed=seed, amended=run)
    one, other = hot(run, 2 + NOTICE), amendment(run, SWARM, lr=1e-4, min_lr=1e-4)
    first = [peer for peer in alive(world) if peer.stage == 0]
    when(world, 2, partial(hear, world, first, one))
    when(world, 5, partial(hear, world, alive(world), other))
    found = losses(world, STEPS)
    expected = turned(plan, world, HOT)
    assert largest_difference(found, lab.reference(expected)) < CLOSE


class TestLiars:
    """One replica of a stage says false things about amendments whenever it can."""

    def test_a_leader_that_lets_it_hold_from_another_step_is_not_followed(self, lab: Lab) -> None:
        plan = plan_for("gpt", 2, STEPS)
        run = run_of(plan)
        world = lab.world(plan, 3, amended=run)
        liar = next(peer for peer in alive(world) if peer.stage == 0)
        assert liar.seat is not None
        true = liar.seat.leader._amended
        liar.seat.leader._amended = lambda: tuple(
            structs.replace(entry, from_step=entry.from_step + 9) for entry in true()
        )
        hear(world, alive(world), hot(run, NOTICE))
        found = losses(world, STEPS)
        expected = turned(plan, world, HOT)
        assert expected.turns[0].from_step == NOTICE
        assert largest_difference(found, lab.reference(expected)) < CLOSE

    @pytest.mark.parametrize("stage", usual(1, [0, 1]))
    def test_who_says_that_it_was_never_agreed_on_stops_nobody(self, lab: Lab, stage: int) -> None:
        plan = plan_for("gpt", 2, STEPS)
        run = run_of(plan)
        world = lab.world(plan, 3, amended=run)
        liar = next(peer for peer in alive(world) if peer.stage == stage)
        assert liar.seat is not None
        liar.seat.leader._amended = tuple
        hear(world, alive(world), hot(run, NOTICE))
        found = losses(world, STEPS)
        expected = turned(plan, world, HOT)
        assert largest_difference(found, lab.reference(expected)) < CLOSE
