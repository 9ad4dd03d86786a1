"""The seats of one volunteer: its home, the second stage beside it, and moves between homes.

Composes ``Volunteer`` (finds and keeps a home), ``SecondSeat`` (dual homing) and ``Mover`` (single
moves), and keeps them consistent when the home changes. Decides nothing itself.
"""

from __future__ import annotations

from protocol.effects import Explain
from protocol.ids import PeerId, Stage
from protocol.matching import bodies
from protocol.matching.context import Context
from protocol.matching.effects import Effect
from protocol.matching.mover import Mover
from protocol.matching.second import SecondSeat
from protocol.matching.timing import MOVE_REST_S
from protocol.matching.volunteer import State, Volunteer


class Seats:
    """Machine of all seats of one peer."""

    def __init__(self, context: Context) -> None:
        self.volunteer = Volunteer(context)
        self._context = context
        self._second = SecondSeat(context)
        self._mover = Mover(context)
        self._last_home: Stage | None = None

    # --- stages held ------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state of the first seat."""
        return self.volunteer.state

    @property
    def home(self) -> Stage | None:
        """The stage that the first seat serves or fetches; during a move still the old one."""
        leaving = self.volunteer.leaving
        return leaving.stage if leaving else self.volunteer.stage

    @property
    def second(self) -> Stage | None:
        """The stage that the second seat serves or fetches; during a change still the old one."""
        return self._second.stage if self._second.leaving is None else self._second.leaving

    @property
    def stages(self) -> frozenset[Stage]:
        """Every stage fetched or served, with either seat."""
        return frozenset(self.volunteer.stages + self._second.stages)

    def seat_of(self, stage: Stage) -> int:
        """Return the seat that holds a stage: 0 is home, 1 the second."""
        return int(self._second.owns(stage))

    @property
    def settled_home(self) -> Stage | None:
        """The home, if it is served and we are not moving to another one."""
        return None if self.volunteer.leaving else self._served_home

    @property
    def _served_home(self) -> Stage | None:
        serves = self.state is State.SERVING or self.volunteer.leaving
        return self.home if serves else None

    # --- inputs -----------------------------------------------------------------------------

    def permitted(self, sender: PeerId, body: bodies.Permit, now: float) -> list[Effect]:
        """Take a steward's answer about a single move; begin the move if both stewards agree.

        Args:
            sender: the answer's signer.
            body: the answer.
            now: monotonic seconds.
        """
        move, found = self._mover.receive(sender, body, now)
        if move is None:
            return found
        if self._second.owns(move.to):
            words = f"staying at stage {move.home}: stage {move.to} is our second stage now"
            return [*found, Explain("matching", words, decision="place")]
        reason = f"stage {move.to} has room, stage {move.home} consents"
        return found + self.volunteer.move_to(move.to, reason, now)

    def serving(self, stage: Stage, now: float) -> list[Effect]:
        """Note that the training side serves an assigned stage (else LocalProtocolError)."""
        if self._second.owns(stage):
            return self._second.serving(stage)
        return self.volunteer.serving(stage, now)

    def lost(self, stage: Stage, reason: str, now: float) -> list[Effect]:
        """Note that the training side lost an assigned stage.

        Args:
            stage: the stage.
            reason: why, in words.
            now: monotonic seconds.

        Raises:
            LocalProtocolError: the stage is not assigned.
        """
        if not self._second.owns(stage):
            return self.volunteer.lost(stage, reason, now)
        self._second.lost(stage)
        return [Explain("matching", f"lost stage {stage}: {reason}")]

    def leave(self, now: float) -> list[Effect]:
        """Give up all seats, for good."""
        return self.volunteer.leave(now) + self._second.leave()

    def look(self, now: float) -> list[Effect]:
        """Look at the changed context."""
        if self._context.population.design.dual_homing:
            self._second.look(self._served_home, now)
        self._mover.look(now)
        return self.volunteer.look(now)

    def tick(self, now: float) -> list[Effect]:
        """Act on every deadline that has passed."""
        found, design = self.volunteer.tick(now), self._context.population.design
        if design.moves:
            rested_at = self.volunteer.moved_at + MOVE_REST_S
            found += self._mover.tick(self.settled_home, rested_at, now)
        if design.dual_homing:
            found += self._second.tick(self._served_home, now)
        return found

    def next_deadline(self) -> float:
        """Return when ``tick`` has something to do, monotonic seconds."""
        parts = (self.volunteer, self._second, self._mover)
        return min(part.next_deadline() for part in parts)

    def follow_home(self, now: float) -> list[Effect]:
        """Notify the second seat and the mover when the home has changed."""
        home, design = self._served_home, self._context.population.design
        if home == self._last_home:
            return []
        self._last_home = home
        if design.moves:
            self._mover.home_changed(home, now)
        return self._second.home_changed(home, now) if design.dual_homing else []
