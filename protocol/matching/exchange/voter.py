"""The voter: a serving volunteer's part in a full epoch.

    IDLE     not called
    CALLED   waits until the boxes of all stages are open, then ranks the stages
    ASKING   waits for KEEP or DROP from the best stage that has not refused it
    KEPT     has a place until the box drops it or the box's cutoff is above its score
    DONE     every stage has refused it, so it stays at home

It tells the box of its home where it has a place, and repeats that until it is acknowledged. State:
one attempt. It changes no seat; ``Exchange`` moves the volunteer when the decision is attested.
"""

from __future__ import annotations

from enum import Enum

from protocol.effects import Effect, Explain, SendSigned
from protocol.ids import PeerId, Stage
from protocol.matching.bodies import encode_body, stage_of
from protocol.matching.context import Context
from protocol.matching.exchange import bodies, wishes
from protocol.matching.exchange.bodies import RUNNING, Epoch, Round
from protocol.matching.exchange.registry import Registry
from protocol.matching.exchange.tally import Ballots
from protocol.matching.exchange.timing import ASK_S
from protocol.matching.population import Population

INFINITY = float("inf")


class State(Enum):
    """States of a voter; see the module's docstring."""

    IDLE = "idle"
    CALLED = "called"
    ASKING = "asking"
    KEPT = "kept"
    DONE = "done"


class Voter:
    """Machine of one volunteer's votes."""

    def __init__(self, context: Context, registry: Registry) -> None:
        self.state = State.IDLE
        self.round: Round | None = None
        self.home = Stage(0)
        self._context = context
        self._registry = registry
        self._view: Population = context.population
        self._wishes: tuple[Stage, ...] = ()
        self._step = 0
        self._score = 0
        self._tries = 0
        self._ask_at = self._tell_at = INFINITY
        self._told: int | None = None
        """The step whose outcome the home box has not acknowledged yet."""

    @property
    def place(self) -> Stage | None:
        """The stage that keeps us in this attempt."""
        return self._wishes[self._step] if self.state is State.KEPT else None

    def watches(self, stage: Stage) -> bool:
        """Tell whether a stage's next ballot may matter to us."""
        return self.state is State.CALLED or self.place == stage

    # --- inputs -----------------------------------------------------------------------------

    def called(
        self, sender: PeerId, body: bodies.Call, home: Stage | None, now: float
    ) -> list[Effect]:
        """Take a call to vote from the box of our home.

        Args:
            sender: the call's verified signer.
            body: the call.
            home: the stage that we may leave; None: none at the moment, so we decline.
            now: monotonic seconds.
        """
        if self._author(stage_of(body), now) != sender:
            return self._count("matching-call-by-stranger")
        declined = self.state is State.IDLE and body.round == self.round
        if self.round is not None and body.round <= self.round and not declined:
            return []
        self.reset()
        self.round, self.home = body.round, stage_of(body)
        if declined or home != body.stage or self._context.me not in self._context.population:
            return self._intent(now)
        self.state = State.CALLED
        return self.look(now)

    def receive(self, sender: PeerId, body: bodies.ToVoter, now: float) -> list[Effect]:
        """Take a box's answer to a vote or an intent.

        Args:
            sender: the answer's verified signer.
            body: the answer.
            now: monotonic seconds.
        """
        if body.round != self.round or self._author(stage_of(body), now) != sender:
            return self._count("matching-other-round")
        if isinstance(body, bodies.Noted):
            return self._noted(body)
        if self.state not in (State.ASKING, State.KEPT) or self._wishes[self._step] != body.stage:
            return []  # a late copy, out of date
        if isinstance(body, bodies.Keep):
            return self._kept(body, now)
        return self._dropped(now, "it prefers others")

    def look(self, now: float) -> list[Effect]:
        """Look at the changed records."""
        if self.state is State.IDLE or self.round is None:
            return []
        epoch = self._epoch(now)
        if epoch is None or epoch.round != self.round:
            if epoch is not None and epoch.round > self.round:
                self.reset()
            return []
        if epoch.phase not in RUNNING[:2]:
            self._ask_at = self._tell_at = INFINITY
            return []
        return self._look_at(epoch, now)

    def tick(self, now: float) -> list[Effect]:
        """Repeat unanswered votes and intents."""
        found: list[Effect] = []
        if now >= self._ask_at and self.state is State.ASKING:
            self._tries += 1
            found += self._ask(now)
        if now >= self._tell_at and self._told is not None:
            found += self._tell(now)
        return found

    def next_deadline(self) -> float:
        """Return when ``tick`` has something to do, monotonic seconds."""
        return min(self._ask_at, self._tell_at)

    def reset(self) -> None:
        """Forget the attempt."""
        self.state, self._told = State.IDLE, None
        self._wishes, self._step = (), 0
        self._ask_at = self._tell_at = INFINITY

    # --- voting -----------------------------------------------------------------------------

    def _look_at(self, epoch: Epoch, now: float) -> list[Effect]:
        if self.state is State.CALLED:
            ballots = self._ballots(now)
            return self._begin(epoch, ballots, now) if self._registry.is_whole(ballots) else []
        if self.state is State.KEPT:
            ballot = self._registry.ballot(epoch.round, self._wishes[self._step], now)
            if ballot and self._score <= ballot.cutoff:
                return self._dropped(now, "its cutoff is above us")
        return []

    def _begin(self, epoch: Epoch, ballots: Ballots, now: float) -> list[Effect]:
        me, self._view = self._context.me, self._context.population
        if me not in self._view:
            self.reset()
            return []
        stages = [ballot.basis for _, (_, ballot) in sorted(ballots.items())]
        relayed = self._context.relayed
        self._wishes = wishes.ranked(self._view, me, self.home, stages, epoch.r, relayed)
        self._step = 0
        order = ", ".join(str(stage) for stage in self._wishes)
        said = Explain("matching", f"voting on a new matching, best first: stages {order}", "debug")
        return [said, *self._try(epoch.fair, ballots, now)]

    def _try(self, fair: int, ballots: Ballots, now: float) -> list[Effect]:
        """Vote for the next stage whose cutoff is below our score; without one, stay at home."""
        while self._step < len(self._wishes):
            stage = self._wishes[self._step]
            score = self._view.score(self._context.me, stage, fair)
            if stage not in ballots or score > ballots[stage][1].cutoff:
                self.state, self._tries = State.ASKING, 0
                return self._ask(now)
            self._step += 1
        self.state, self._ask_at = State.DONE, INFINITY
        said = Explain("matching", f"no stage wants us more than others: we stay at {self.home}")
        return [said, *self._announce(now)]

    def _ask(self, now: float) -> list[Effect]:
        """Send the vote for the current stage, for the first time or again."""
        stage = self._wishes[self._step]
        self._ask_at = now + ASK_S
        letter = self._vote(stage, now)
        if self._tries:
            return letter
        said = f"voting for stage {stage}, wish {self._step + 1} of {len(self._wishes)}"
        return [*letter, Explain("matching", said, "debug")]

    def _kept(self, body: bodies.Keep, now: float) -> list[Effect]:
        self._score = body.score
        if self.state is State.KEPT:
            return []
        self.state, self._ask_at = State.KEPT, INFINITY
        said = Explain("matching", f"stage {body.stage} keeps us in the vote", "debug")
        found = [] if body.stage == self.home else self._announce(now)
        return [said, *found, *self.look(now)]

    def _dropped(self, now: float, why: str) -> list[Effect]:
        said = Explain("matching", f"stage {self._wishes[self._step]} drops us: {why}", "debug")
        self._step += 1
        self._told, self._tell_at = None, INFINITY
        epoch = self._epoch(now)
        if epoch is None or epoch.round != self.round:
            return [said]
        return [said, *self._try(epoch.fair, self._ballots(now), now)]

    # --- intents to our home's box ----------------------------------------------------------

    def _announce(self, now: float) -> list[Effect]:
        """Tell the home box where we have a place now."""
        self._told = self._step
        return self._tell(now)

    def _tell(self, now: float) -> list[Effect]:
        self._tell_at = now + ASK_S
        return self._intent(now)

    def _noted(self, body: bodies.Noted) -> list[Effect]:
        if body.step == self._told:
            self._told, self._tell_at = None, INFINITY
        return []

    # --- inside -----------------------------------------------------------------------------

    def _vote(self, stage: Stage, now: float) -> list[Effect]:
        notice = self._context.board.current(stage, now)
        if notice is None or self.round is None:
            return []
        body = bodies.Vote(
            stage=stage,
            mandate=notice.posting.mandate,
            issued_ms=self._context.number(now),
            steward=notice.author,
            round=self.round,
            home=self.home,
            step=self._step,
        )
        return [SendSigned(notice.author, bodies.KINDS[bodies.Vote], encode_body(body))]

    def _intent(self, now: float) -> list[Effect]:
        notice = self._context.board.current(self.home, now)
        if notice is None or self.round is None:
            return []
        body = bodies.Intent(
            stage=self.home,
            mandate=notice.posting.mandate,
            issued_ms=self._context.number(now),
            steward=notice.author,
            round=self.round,
            step=self._step,
            to=self.place,
        )
        return [SendSigned(notice.author, bodies.KINDS[bodies.Intent], encode_body(body))]

    def _epoch(self, now: float) -> Epoch | None:
        call = self._registry.call(now)
        return call.epoch if call else None

    def _ballots(self, now: float) -> Ballots:
        return self._registry.ballots(self.round, now) if self.round else {}

    def _author(self, stage: Stage, now: float) -> PeerId | None:
        notice = self._context.board.current(stage, now)
        return notice.author if notice else None

    def _count(self, reason: str) -> list[Effect]:
        self._context.counters[reason] += 1
        return []
