"""The chair or a box dies at each point of an epoch: it ends with the same matching.

Real machines. Spectators, which serve nothing, are the stewards: their death changes nothing
of the problem itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from protocol.effects import Publish, SendSigned
from protocol.ids import PeerId, Stage
from protocol.matching.design import Design
from protocol.matching.exchange import bodies
from protocol.matching.volunteer import State
from tests.support.matching_world import STORMY, WALL_S, World, manifest, member, peer

WORKERS, STAGES = 9, 3
DESIGN = Design(dual_homing=False)
WEATHER = replace(STORMY, gossip_s=(0.02, 0.15))
Point = Callable[[bodies.Letter | bodies.Spread], bool]


def phase(wanted: int) -> Point:
    return lambda body: isinstance(body, bodies.Epoch) and body.phase == wanted


def letter(kind: type[bodies.Letter]) -> Point:
    return lambda body: isinstance(body, kind)


POINTS: dict[str, Point] = {
    "called": phase(bodies.COLLECT),
    "box opened": lambda body: isinstance(body, bodies.Ballot),
    "elector called": letter(bodies.Call),
    "voted": letter(bodies.Vote),
    "kept": letter(bodies.Keep),
    "dropped": letter(bodies.Drop),
    "told home": letter(bodies.Intent),
    "frozen": phase(bodies.FREEZE),
    "plan published": lambda body: isinstance(body, bodies.Ballot) and body.projection is not None,
    "plan attested": lambda body: isinstance(body, bodies.Attest) and not body.decision,
    "decided": phase(bodies.COMMIT),
    "decision attested": lambda body: isinstance(body, bodies.Attest) and body.decision,
}


class WatchedWorld(World):
    """A world that kills the steward of a stage right after the first effect of a kind."""

    target: tuple[Stage, str] | None = None
    victim: PeerId | None = None

    def steward_of(self, stage: Stage) -> PeerId:
        return next(who for who, m in self.machines.items() if stage in m.stewardships)

    def _perform(self, who: PeerId, effects: Sequence[object]) -> None:
        super()._perform(who, effects)
        for effect in effects:
            if not isinstance(effect, Publish | SendSigned) or not bodies.is_ours(effect.kind):
                continue
            if self.target and POINTS[self.target[1]](bodies.decode(effect.kind, effect.body)):
                self.victim = self.steward_of(self.target[0])
                self.target = None
                self.after(0.0, lambda gone=self.victim: self.crash(gone))


def uneven_world(seed: int) -> WatchedWorld:
    """Return a running swarm of which some have just turned out slower than they said."""
    world = WatchedWorld(manifest([1e9] * STAGES), seed, WEATHER, DESIGN)
    for number in range(WORKERS):
        world.join(member(seed * 100 + number, measured_s=1000.0))
    for number in range(50, 58):
        world.join(member(seed * 100 + number, memory_bytes=0.0, joined_at=WALL_S - 5000))
    workers = [peer(seed * 100 + number) for number in range(WORKERS)]
    world.run(60, until=lambda: serving(world, workers))
    world.run(10)
    for who in workers:
        speed = world.members[who].flops * min(1.0, world.random.lognormvariate(-0.5, 1.3))
        world._change(replace(world.members[who], flops=speed))
    return world


def serving(world: World, workers: list[PeerId]) -> bool:
    return len(world.machines) == WORKERS + 8 and all(
        world.machines[who].state is State.SERVING for who in workers
    )


def after_first_moves(world: World, seed: int) -> dict[PeerId, Stage | None]:
    """Run until the first moves and a little longer; return who serves what."""
    world.run(100, until=lambda: world.said("moving from"))
    world.run(4)
    found = world.matching()
    return {peer(seed * 100 + n): found[peer(seed * 100 + n)] for n in range(WORKERS)}


def undisturbed(seed: int) -> dict[PeerId, Stage | None]:
    world = uneven_world(seed)
    return after_first_moves(world, seed)


SEEDS = (0, 12)


@pytest.fixture(scope="module")
def wanted() -> dict[int, dict[PeerId, Stage | None]]:
    return {seed: undisturbed(seed) for seed in SEEDS}


@pytest.mark.parametrize("stage", [Stage(0), Stage(1)], ids=["chair", "box"])
@pytest.mark.parametrize("point", POINTS)
def test_the_epoch_ends_with_the_same_matching(
    point: str, stage: Stage, wanted: dict[int, dict[PeerId, Stage | None]]
) -> None:
    for seed in SEEDS:
        world = uneven_world(seed)
        world.target = (stage, point)
        assert after_first_moves(world, seed) == wanted[seed], f"seed {seed}"
        assert world.victim is not None, f"seed {seed}: never came to that point"
