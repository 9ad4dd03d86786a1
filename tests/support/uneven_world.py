"""A world in which some volunteers turn out slower than they said, so that a full epoch is called.

On request it kills the steward of a stage at a given point of that epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

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


class UnevenWorld(World):
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


def uneven_world(seed: int) -> UnevenWorld:
    """Return a running swarm of which some have just turned out slower than they said."""
    world = UnevenWorld(manifest([1e9] * STAGES), seed, WEATHER, DESIGN)
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
