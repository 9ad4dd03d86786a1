"""The stewardships of one peer: the stages it decides for now, and their mandates.

It takes over vacant stages when its turn comes, and steps down where another peer takes precedence.
State: the stewards. Decides no match.
"""

from protocol.ids import Stage
from protocol.matching import stewards
from protocol.matching.board import precedence
from protocol.matching.context import Context
from protocol.matching.effects import Effect
from protocol.matching.steward import Steward
from protocol.matching.timing import BEACON_S, HASTE_S
from protocol.pace import ANSWER_S
from protocol.wire.letters import MAX_TERM, Mandate

INFINITY = float("inf")
ABSURD_EPOCH = 2**30
"""Only a liar reaches such a number. Our mandate is newer, so our epochs may restart at 0."""


class Stewardships:
    """Machine of one peer's stewardships."""

    def __init__(self, context: Context) -> None:
        self.held: dict[Stage, Steward] = {}
        self._context = context
        self._vacant_since: dict[Stage, float] = {}
        self._closed = False

    def close(self) -> None:
        """Give up all stewardships, for good."""
        self.held.clear()
        self._closed = True

    def update(self, now: float) -> list[Effect]:
        """Look at the changed population."""
        return [effect for steward in self.held.values() for effect in steward.update(now)]

    def look(self, now: float) -> None:
        """Look at the changed board: step down, let every steward look."""
        for stage in list(self.held):
            self._step_down_if_outranked(stage, now)
        for steward in self.held.values():
            steward.look(now)

    def tick(self, now: float) -> list[Effect]:
        """Take over vacant stages whose turn is ours, and let every steward act."""
        found: list[Effect] = []
        if self._may_serve:
            for stage, turn_at in self._turns(now).items():
                if now >= turn_at:
                    found += self._take_over(stage, now)
        return found + [effect for held in self.held.values() for effect in held.tick(now)]

    def next_deadline(self, now: float) -> float:
        """Return when ``tick`` has something to do, monotonic seconds."""
        own = min((held.next_deadline() for held in self.held.values()), default=INFINITY)
        if not self._may_serve:
            return own
        next_beacon = now + BEACON_S - self._context.wall_s(now) % BEACON_S
        turns = min(self._turns(now).values(), default=INFINITY)
        return min(own, turns, next_beacon, self._context.board.next_expiry(now))

    # --- inside -----------------------------------------------------------------------------

    @property
    def _may_serve(self) -> bool:
        return not self._closed and self._context.me in self._context.population

    def _step_down_if_outranked(self, stage: Stage, now: float) -> None:
        me, mandate = self._context.me, self.held[stage].mandate
        notice = self._context.board.notices(now).get(stage)
        if notice is None or notice.author == me:
            return
        may_speak = me in self._context.population.candidates(stage, mandate.beacon)
        ours, theirs = (precedence(stage, of) for of in ((me, mandate), notice.source))
        if theirs < ours or not may_speak:
            del self.held[stage]

    def _turns(self, now: float) -> dict[Stage, float]:
        """Return when we take over each vacant stage unless another candidate does first."""
        vacant = self._context.board.facts(now).vacant
        if not vacant:
            self._vacant_since.clear()
            return {}
        beacon = stewards.beacon_at(self._context.wall_s(now))
        self._vacant_since = {stage: self._vacant_since.get(stage, now) for stage in vacant}
        turns = {}
        for stage, since in self._vacant_since.items():
            order = self._context.population.candidates(stage, beacon)
            if self._context.me in order:
                wait = ANSWER_S + order.index(self._context.me) * HASTE_S
                turns[stage] = since + wait
        return turns

    def _take_over(self, stage: Stage, now: float) -> list[Effect]:
        notice = self._context.board.last_believed.get(stage)
        beacon = stewards.beacon_at(self._context.wall_s(now))
        term = min(notice.posting.mandate.term + 1, MAX_TERM) if notice else 1
        mandate = Mandate(beacon, term)
        self._vacant_since.pop(stage, None)
        if stage in self.held:
            return list(self.held[stage].continue_as(mandate, now))
        epoch = notice.posting.epoch if notice and notice.posting.epoch < ABSURD_EPOCH else 0
        self.held[stage] = Steward(self._context, stage, mandate, epoch)
        return list(self.held[stage].start(now))
