"""A world that watches: the true servers of each stage, and the effect of every voluntary
change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from protocol.effects import Send
from protocol.ids import PeerId, Stage
from protocol.matching.effects import Assign, Unassign
from protocol.matching.member import Member
from protocol.matching.population import Population
from protocol.matching.sharing import StageLevel, effective_levels
from protocol.matching.timing import MEASURED_S
from protocol.wire.messages import Letter
from tests.support.matching_world import STORMY, Design, Weather, World, manifest, member


@dataclass(frozen=True)
class Departure:
    """A served stage was given up, although it could have been served on."""

    at: float
    who: PeerId
    stage: Stage
    to: Stage | None
    """Target of the first seat; None: the second seat changed."""
    replicas: tuple[int, ...]
    """Of every stage afterwards."""
    before: int
    """The lowest effective level when the mover's new place did not count yet ..."""
    after: int
    """... and once its old one does not count any more, all else being equal."""
    still_served: bool
    """Whether the volunteer serves another stage at this moment."""


class WatchedWorld(World):
    """Keeps the truth beside what the peers believe."""

    departures: list[Departure]
    set_out: list[tuple[float, PeerId, Stage, Assign]]
    """Moves of first seats, when they begin: (moment, who, home, what it was told)."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.departures, self.set_out = [], []
        self.served: dict[PeerId, dict[Stage, int]] = {}
        """Stages that are served, with the seat."""

    @classmethod
    def equal(cls, stages: int, seed: int, weather: Weather, design: Design) -> WatchedWorld:
        """Return an empty world of stages that cost the same."""
        return cls(manifest([1e9] * stages), seed, weather, design)

    def letters(self, kind: str) -> list[tuple[float, PeerId]]:
        """Return when and by whom letters of a kind were sent."""
        return [
            (at, who)
            for at, who, effect in self.log
            if isinstance(effect, Send)
            and isinstance(effect.message, Letter)
            and effect.message.kind == kind
        ]

    def single_moves(self) -> list[tuple[float, PeerId, Stage, Assign]]:
        """Return the moves to a stage that called."""
        return [move for move in self.set_out if "wants us" in move[3].reason]

    def population(self, members: Iterable[Member] | None = None) -> Population:
        """Return members as a population, by default the truth."""
        found = self.members.values() if members is None else members
        redundancy = self.manifest.policy.redundancy
        return Population(found, self.manifest.stages, redundancy)

    def replicas(self) -> tuple[int, ...]:
        """Return how many serve every stage."""
        staff = [held for who, held in self.served.items() if who in self.machines]
        return tuple(sum(s in held for held in staff) for s in range(self.manifest.stage_count))

    def levels(self, without: tuple[PeerId, Stage] | None = None) -> tuple[int, ...]:
        """Return the effective levels of what is served, a mover counted at its old home."""
        view = self.population()
        stages = [StageLevel(0)] * self.manifest.stage_count
        for who, held in self.served.items():
            if who in self.machines:
                kept = [s for s in held if (who, s) != without]
                stages = _with(stages, view, who, kept)
        return effective_levels(stages)

    def total_sent(self) -> int:
        """Return the number of letters and records so far."""
        return sum(self.sent.values())

    # --- inside -----------------------------------------------------------------------------

    def _serve(self, who: PeerId, stage: Stage) -> None:
        machine = self.machines.get(who)
        if machine and stage in machine.stages:
            self.served.setdefault(who, {})[stage] = machine.seat_of(stage)
        super()._serve(who, stage)

    def lose(self, who: PeerId, reason: str) -> None:
        stage = self.machines[who].stage
        if stage is not None:
            self.served.get(who, {}).pop(stage, None)
        super().lose(who, reason)

    def _perform(self, who: PeerId, effects: Sequence[object]) -> None:
        machine = self.machines.get(who)
        for effect in effects:
            if isinstance(effect, Assign) and machine and machine.home is not None:
                home, is_first = machine.home, machine.seat_of(effect.stage) == 0
                if is_first and home != effect.stage:
                    self.set_out.append((self.now, who, home, effect))
            if isinstance(effect, Unassign):
                self._leave_stage(who, effect.stage)
        super()._perform(who, effects)

    def _leave_stage(self, who: PeerId, stage: Stage) -> None:
        held = self.served.get(who, {})
        if stage not in held:
            return
        machine, seat = self.machines[who], held[stage]
        others = [s for s in held if s != stage]
        to = machine.home if seat == 0 and machine.home != stage else None
        # Before: without the place that replaces the one given up.
        newest = to if to is not None else next((s for s in others if s == machine.second), None)
        before = self.levels() if newest is None else self.levels(without=(who, newest))
        del held[stage]
        after = self.levels()
        self.departures.append(
            Departure(
                self.now, who, stage, to, self.replicas(), min(before), min(after), bool(held)
            )
        )


def _with(
    stages: list[StageLevel], view: Population, who: PeerId, held: Sequence[Stage]
) -> list[StageLevel]:
    """Return what serves every stage with one more member: two neighbours share its time."""
    changed, pair = list(stages), sorted(held)[:2]
    if len(held) == 2 and pair[1] - pair[0] == 1:
        lower, upper = pair
        pool = changed[lower]
        changed[lower] = replace(
            pool,
            pool_here=pool.pool_here + view.rate(who, lower),
            pool_next=pool.pool_next + view.rate(who, upper),
        )
        return changed
    for stage in held[:1]:
        changed[stage] = replace(changed[stage], alone=changed[stage].alone + view.rate(who, stage))
    return changed


def settled(seed: int, design: Design, stages: int = 3) -> WatchedWorld:
    """Return eleven unequal peers at work, some time after their last move."""
    world = WatchedWorld.equal(stages, seed, STORMY, design)
    for number in range(11):
        speed = world.random.lognormvariate(0, 0.5) * 1e9
        who = member(seed * 100 + number, speed, measured_s=1000.0)
        world.join(who, at=world.random.uniform(0, 2))
    world.run(MEASURED_S + 100)
    return world
