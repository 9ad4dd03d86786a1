"""The seats of one volunteer: its home and the second seat beside it.

Routes answers to the seat that they are about, follows the call of a stage that wants us, and keeps
the second seat beside the home.
"""

from protocol.ids import PeerId, Stage
from protocol.matching.context import Context
from protocol.matching.effects import Effect
from protocol.matching.gain import Change, changes
from protocol.matching.prospects import Beside, Prospects
from protocol.matching.seat import Seat, State
from protocol.matching.timing import LOOK_S, MEASURED_S
from protocol.wire.letters import ToVolunteer


class Seats:
    """Machine of all seats of one peer."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._beside = Beside(context, self._anchor)
        self.home = Seat(context, 0, Prospects(context))
        self.second = Seat(context, 1, self._beside)
        self._weigh_at = float("-inf")

    # --- stages held ------------------------------------------------------------------------

    @property
    def stages(self) -> frozenset[Stage]:
        """Every stage fetched or served, with either seat."""
        return frozenset(self.home.stages) | frozenset(self.second.stages)

    def seat_of(self, stage: Stage) -> int:
        """Return the seat that holds a stage."""
        return int(stage in self.second.stages and stage not in self.home.stages)

    def _anchor(self, now: float) -> Stage | None:
        """Return the stage that the second seat has to be beside. Before the gang start that is the
        stage that keeps us, once we have waited for long enough."""
        home = self.home
        waits = home.state is State.HELD and now >= home.held_at + LOOK_S
        return home.kept_by if waits else home.rests_at

    # --- inputs -----------------------------------------------------------------------------

    def receive(self, sender: PeerId, body: ToVolunteer, now: float) -> list[Effect]:
        """Take a steward's answer."""
        bid = self.second.bid
        seat = self.second if bid is not None and bid.stage == body.stage else self.home
        return seat.receive(sender, body, now)

    def serving(self, stage: Stage, now: float) -> list[Effect]:
        """Note that the training side serves an assigned stage (else LocalProtocolError)."""
        return self._holder(stage).serving(stage, now)

    def lost(self, stage: Stage, reason: str, now: float) -> list[Effect]:
        """Note that the training side lost an assigned stage.

        Raises:
            LocalProtocolError: the stage is not assigned.
        """
        return self._holder(stage).lost(stage, reason, now)

    def leave(self, now: float) -> list[Effect]:
        """Give up all seats, for good."""
        return self.home.leave(now) + self.second.leave(now)

    def look(self, now: float) -> list[Effect]:
        """Look at the changed context."""
        return self._answer_call(now) + self.home.look(now) + self.second.look(now)

    def tick(self, now: float) -> list[Effect]:
        """Act on every deadline that has passed."""
        return self.home.tick(now) + self.second.tick(now) + self._weigh_second(now)

    def next_deadline(self) -> float:
        """Return when ``tick`` has something to do, monotonic seconds."""
        holds_two = self.second.rests_at is not None
        weigh_at = self._weigh_at + LOOK_S if holds_two else float("inf")
        return min(weigh_at, self.home.due_at, self.second.due_at)

    def follow_home(self, now: float) -> list[Effect]:
        """Keep the second seat only beside a home; look for one when the home is new."""
        second, home = self.second, self.home
        if second.bid is not None:
            at = home.kept_by
            if at is None or abs(second.bid.stage - at) != 1:
                return second.release("our main stage is elsewhere now", now)
            return []
        return second.look(now)

    # --- inside -----------------------------------------------------------------------------

    def _holder(self, stage: Stage) -> Seat:
        return (self.home, self.second)[self.seat_of(stage)]

    def _answer_call(self, now: float) -> list[Effect]:
        """Go to a stage that wants us, if that pays by what we see ourselves."""
        context = self._context
        if self.home.rests_at is None:
            return []
        notices, asked = context.board.notices(now), self.second.bid
        calls = [stage for stage, n in notices.items() if n.posting.wanted == context.me]
        if asked is not None and asked.stage in calls:
            return []  # our second seat is on its way there
        for stage in calls:
            for change in changes(context.population, context.me, stage):
                if change.objection(context.population) is None:
                    return self._set_out(change, now)
        return []

    def _set_out(self, change: Change, now: float) -> list[Effect]:
        seat = self.second if change.after[0] == change.before[0] else self.home
        if now < seat.moved_at + MEASURED_S:
            return []
        reason = f"stage {change.to} wants us: the lowest of the stages concerned rises"
        return seat.move_to(change.to, reason, now)

    def _weigh_second(self, now: float) -> list[Effect]:
        """Give the second stage up if it is not worth its averaging, and others serve it."""
        stage, context = self.second.rests_at, self._context
        if stage is None or now < self._weigh_at + LOOK_S:
            return []
        self._weigh_at = now
        reason, notice = self._beside.dear(stage, held=True), context.board.notices(now).get(stage)
        if reason is None or notice is None or notice.posting.copies <= notice.posting.r:
            return []
        if not context.population.serves_without(stage, context.me):
            return []
        return self.second.release(reason, now)
