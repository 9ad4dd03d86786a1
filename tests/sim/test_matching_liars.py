"""Property 11: some claim to be faster than they are, until their partners have measured them."""

from dataclasses import replace

from protocol.ids import PeerId, Stage
from protocol.matching.timing import MEASURED_S
from tests.support.matching_examples import member
from tests.support.matching_world import CALM, Design, World, swarm

SLOW, HONEST = 0.1e9, 6


def boasting(seed: int, claim: float) -> World:
    """Return six equals and two that claim to be faster but have a tenth of their speed, on two
    stages; what partners measure of the two is known after five minutes."""
    world = swarm([1.0] * HONEST, 2, seed, CALM, Design(dual_homing=False))
    for number in (50, 51):
        world.join(member(seed * 100 + number, claim * SLOW))
        world.after(MEASURED_S, lambda n=number: measure(world, seed * 100 + n))
    return world


def measure(world: World, number: int) -> None:
    known = world.members[member(number).peer]
    world._change(replace(known, flops=SLOW, measured_s=MEASURED_S))


def liars_of(seed: int) -> set[PeerId]:
    return {member(seed * 100 + number).peer for number in (50, 51)}


def honest_replicas(world: World, seed: int) -> tuple[int, ...]:
    """Return how many honest volunteers serve each stage."""
    homes = [
        m.seats.home.advertised for who, m in world.machines.items() if who not in liars_of(seed)
    ]
    return tuple(homes.count(Stage(s)) for s in range(2))


def test_a_liar_is_corrected_and_its_stage_gets_an_honest_one_instead() -> None:
    """Two liars at one stage look like four; once measured, all is as if they had not lied."""
    mended = 0
    for seed in range(8):
        lied, honest = boasting(seed, 100.0), boasting(seed, 1.0)
        lied.run(60)
        before = honest_replicas(lied, seed)
        for world in (lied, honest):
            world.run(MEASURED_S + 360 - world.now + 1000)
        assert honest_replicas(lied, seed) == (3, 3), f"seed {seed}"
        assert min(lied.levels()) >= 0.95 * min(honest.levels()), f"seed {seed}"
        mended += before != (3, 3)
    assert mended
