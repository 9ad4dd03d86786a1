"""A trial: the course of a world, and the conditions at its end.

The world meets its faults; then all faults end, every stage has to resume and all volunteers have
to serve; then the run ends, and once nobody is kept on probation, only heartbeats may be sent (I7).
"""

from typing import Final

from client.lab.simulate.chaos.volunteer import Volunteer
from client.lab.simulate.chaos.world import ChaosWorld
from client.lab.simulate.invariants import expect, logged
from protocol.ids import short
from protocol.pace import ASIDE_S, FORGET_S
from protocol.recovery.knowledge import PATIENCE_S
from protocol.seat.standing import MOST_DOUBLINGS

SETTLE_S: Final = 600.0
"""Seconds within which every stage resumes after the last fault."""
FURTHER_STEPS: Final = 2
"""Versions that every stage has to make after the last fault."""
QUIET_AFTER_S: Final = 15.0
AUDITS_S: Final = 60.0 + PATIENCE_S
"""The audits of the last steps, and the charges that come of them, may take longer; and who is
expelled waits so long for the others before it begins anew alone."""
PROBATION_S: Final = 1.2 * ASIDE_S * (1 << MOST_DOUBLINGS)
"""The longest time in which nobody on probation is tried, by the slowest clock."""
QUIET_S: Final = 10.0
LOG_LINES: Final = 40


class Trial:
    """See the module's docstring."""

    def __init__(self, world: ChaosWorld) -> None:
        self._world = world

    def run(self) -> None:
        """Run to the end.

        Raises:
            InvariantViolation: an invariant is broken; the message names the seed and the command
                that replays it, and ends with the log.
        """
        world, config = self._world, self._world.config
        again = f"replay: .venv/bin/python -m client.lab.simulate.chaos --seed {config.seed}"
        again += "".join(f" --lie {kind}" for kind in config.lies)
        again += f" --audits {config.audits}" if config.audits else ""
        again += " --hashes-later" if config.hashes_later else ""
        with logged(config.seed, world.log, LOG_LINES, again):
            while not world.faults.over:
                world.advance_to(world.agenda.now + 0.5)
            self.end()

    def end(self) -> None:
        """End all faults and check the recovery."""
        self._world.faults.end()
        self._settle()
        self._finish()
        self._world.check_bounds()
        self._world.check_states()

    def _settle(self) -> None:
        """Check that every stage resumes and all volunteers serve."""
        world = self._world
        goal = max(world.versions()) + FURTHER_STEPS
        limit = world.agenda.now + SETTLE_S
        while not self._went_on(goal):
            world.advance_to(world.agenda.now + 1.0)
            expect(world.agenda.now < limit, f"no progress to version {goal}\n{self.describe()}")

    def _went_on(self, goal: int) -> bool:
        serving = all(volunteer.serving for volunteer in self._asked())
        return serving and min(self._world.versions()) >= goal

    def _asked(self) -> list[Volunteer]:
        return [v for v in self._world.present() if not v.lies]

    def _finish(self) -> None:
        """End the run and check that all reach its last version and fall silent."""
        world = self._world
        world.last_step(max(world.versions()) + 1)
        self._until_finished()
        limit = world.agenda.now + SETTLE_S
        while len({v.recovery.lineage for v in self._asked()}) > 1 and world.agenda.now < limit:
            world.advance_to(world.agenda.now + FORGET_S)  # one part joins the other's lineage
        world.advance_to(world.agenda.now + (AUDITS_S if world.config.audits else QUIET_AFTER_S))
        self._until_tried()
        before = world.network.carried
        world.advance_to(world.agenda.now + QUIET_S)
        said = world.network.carried - before
        expect(not said, f"I7: {said} messages after the end of the run")

    def _until_finished(self) -> None:
        world = self._world
        limit = world.agenda.now + SETTLE_S
        while not all(v.serving and v.seat and v.seat.finished for v in self._asked()):
            world.advance_to(world.agenda.now + 1.0)
            expect(world.agenda.now < limit, f"the last step stays open\n{self.describe()}")

    def _until_tried(self) -> None:
        """Wait until nobody is kept from counting any more (``seat/standing.py``): whoever counts
        only then is told who is charged."""
        world = self._world
        limit = world.agenda.now + PROBATION_S
        seats = [v.seat for v in self._asked() if v.seat is not None]
        while any(seat.standing.closed_until() for seat in seats):
            world.advance_to(world.agenda.now + 1.0)
            expect(world.agenda.now < limit, "somebody never counts again")

    def summary(self) -> str:
        """Return a summary in one line."""
        world = self._world
        return (
            f"{world.agenda.now:.0f} s, {world.events} events, {world.faults.total} faults, "
            f"versions {world.versions()}, at most {dict(world.checks.most)}"
        )

    def describe(self) -> str:
        """Return the state of all volunteers in words."""
        lines = [f"at {self._world.agenda.now:.2f} s"]
        for volunteer in self._world.present():
            seat = volunteer.seat
            words = "no seat" if seat is None else f"step {seat.step} {seat.why()}"
            state = "down" if not volunteer.alive else "paused" if volunteer.paused else "up"
            linked = len(volunteer.links)
            held = "" if seat is None else f"in flight {sorted(seat.pipeline.in_flight())}"
            lines.append(
                f"  {short(volunteer.peer)} stage {volunteer.stage} {state}, {linked} links, "
                f"{words} {held}"
            )
        return "\n".join(lines)
