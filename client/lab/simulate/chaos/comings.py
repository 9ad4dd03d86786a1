"""Members of one stage that come and go for hours, as friends do; whoever is alone trains alone.

A member leaves in order or its process ends, is away for seconds or for long, and may find its
checkpoints damaged when it comes back. Two that are up and linked follow one lineage, serve, and
are at one version, within the steps that are under way; they may be apart for ``TOGETHER_S`` after
they meet, or after a third one comes for whose line they give up theirs. Nobody begins anew
at a version that a linked member has passed (invariant I5, as people mean it: one model).
"""

import random
from dataclasses import dataclass
from functools import partial
from typing import Final

from client.lab.simulate.agenda import Range
from client.lab.simulate.chaos.config import ChaosConfig
from client.lab.simulate.chaos.volunteer import Volunteer
from client.lab.simulate.chaos.world import ChaosWorld
from client.lab.simulate.invariants import expect, logged
from protocol.ids import short

TOGETHER_S: Final = 180.0
UP_S: Final = (60.0, 900.0)
AWAY_S: Final = (5.0, 1200.0)
CRASHES, DAMAGED = 0.3, 0.1
"""Shares of the sessions that end without a goodbye, and after which no checkpoint is readable."""
COMPUTE_S: Range = (0.5, 2.0)
STEPS_APART: Final = 3
LOOK_S: Final = 1.0
LOG_LINES: Final = 60


@dataclass(frozen=True, slots=True)
class Session:
    """One session of a member."""

    up_s: float
    away_s: float
    """Until its next one."""
    in_order: bool
    damaged: bool


class Comings:
    """See the module's docstring; equal seeds give equal runs.

    Args:
        seed: of the sessions and of the world.
        members: their number.
        hours: virtual ones.
    """

    def __init__(self, seed: int, members: int, hours: float) -> None:
        self._draw = random.Random(f"comings {seed}")
        config = ChaosConfig(
            seed=seed,
            stages=1,
            replicas=members,
            per_step=4,
            compute_s=COMPUTE_S,
            checkpoint_every=10,
            parting=True,
        )
        self.seed, self._until = seed, 3600.0 * hours
        self.world = ChaosWorld(config, faults=[])
        self._together: dict[frozenset[str], float] = {}
        """When two members that are up and linked met, or were one for the last time."""
        for volunteer in self.world.present():
            self._stay(volunteer)

    def run(self) -> None:
        """Run to the end.

        Raises:
            InvariantViolation: two lineages stay beside each other, or another invariant is broken.
        """
        world = self.world
        with logged(self.seed, world.log, LOG_LINES):
            while world.agenda.now < self._until:
                world.advance_to(world.agenda.now + LOOK_S)
                self._look()

    # --- coming and going ------------------------------------------------------------------

    def _stay(self, volunteer: Volunteer) -> None:
        draw = self._draw
        up_s, away_s = draw.uniform(*UP_S), draw.choice((AWAY_S[0], draw.uniform(*AWAY_S)))
        crashes, damaged = draw.random() < CRASHES, draw.random() < DAMAGED
        session = Session(up_s, away_s, not crashes, damaged)
        self.world.agenda.after(session.up_s, partial(self._go, volunteer, session))

    def _go(self, volunteer: Volunteer, session: Session) -> None:
        seat, worker = volunteer.seat, volunteer.worker
        serving = seat is not None and seat.serving and seat.step > 0
        if session.in_order and serving and seat is not None and worker is not None:
            volunteer.disk.write(volunteer.stage, seat.step, worker.save(seat.step), ())
        self.world.crash(volunteer, wipe=False)
        if session.damaged:
            volunteer.disk.checkpoints = {}
        self.world.agenda.after(session.away_s, partial(self._come, volunteer))

    def _come(self, volunteer: Volunteer) -> None:
        self.world.start(volunteer)
        self._stay(volunteer)

    # --- what has to hold ------------------------------------------------------------------

    def _look(self) -> None:
        now, linked = self.world.agenda.now, set[frozenset[str]]()
        members = self.world.present()
        for one in members:
            for two in members:
                pair = frozenset({one.peer, two.peer})
                if two.peer in one.links and one.peer in two.links:
                    linked.add(pair)
                    words = self._apart(one, two)
                    since = self._together.setdefault(pair, now) if words else now
                    self._together[pair] = since
                    expect(now < since + TOGETHER_S, f"I5: {words}")
        self._together = {pair: at for pair, at in self._together.items() if pair in linked}

    def _apart(self, one: Volunteer, two: Volunteer) -> str:
        """Say why two members are not one; empty: they are."""
        steps = [v.seat.step if v.seat else None for v in (one, two)]
        members = zip((one, two), steps, strict=True)
        words = " and ".join(f"{short(v.peer)} at {step}" for v, step in members)
        if one.recovery.lineage != two.recovery.lineage:
            return f"two lineages stay beside each other: {words}"
        if not (one.serving and two.serving):
            return f"not both serve: {words}"
        if one.seat and two.seat and abs(one.seat.step - two.seat.step) > STEPS_APART:
            return f"they stay more than {STEPS_APART} steps apart: {words}"
        return ""
