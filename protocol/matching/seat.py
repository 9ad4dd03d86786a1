"""One seat of a volunteer: finds a stage and keeps it.

A volunteer has two: its home may be any stage, its second seat one beside that. A move is make
before break: while FETCHING, it still serves the stage it is ``leaving``. State: its bids and its
prospects. It reads the context and decides nothing for others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from protocol import limits
from protocol.effects import Decision, Explain, Send
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId, Stage
from protocol.matching.board import Notice, describe
from protocol.matching.context import Context
from protocol.matching.effects import Assign, Effect, Unassign
from protocol.matching.preferences import words
from protocol.matching.prospects import Prospects
from protocol.matching.timing import HASTE_S, LEASE_S, MUTE_AFTER_TRIES
from protocol.pace import ANSWER_S, RENEWALS
from protocol.wire import letters
from protocol.wire.letters import Mandate
from protocol.wire.messages import Letter

INFINITY = float("inf")
ELSEWHERE = "placed elsewhere"


@dataclass(frozen=True, slots=True)
class Bid:
    """The place a volunteer asks for or holds, and its conversation with the steward about it."""

    stage: Stage
    steward: PeerId
    mandate: Mandate
    since_ms: int
    """Answers to letters that we issued later count."""
    asked_ms: int
    """Answers to letters that we issued later confirm what the last one says."""
    tries: int = 1
    """Times that was said; 0 once it was answered."""
    answered_ms: int = 0
    """Unix milliseconds at which the steward issued its last answer."""

    @classmethod
    def on(cls, notice: Notice, number: int) -> Bid:
        """Begin a conversation with the steward that wrote a posting."""
        posting = notice.posting
        return cls(posting.stage, notice.author, posting.mandate, number, number)

    def is_answered_by(self, body: letters.ToVolunteer) -> bool:
        """Tell whether a body is the steward's newest answer to this bid."""
        is_newest = self.since_ms <= body.asked_ms and self.answered_ms < body.issued_ms
        return is_newest and self.mandate == body.mandate


class State(Enum):
    """States of a seat. No steward ends the last two before it has left."""

    FREE = "free"
    PROPOSED = "proposed"
    HELD = "held"
    FETCHING = "fetching"
    SERVING = "serving"
    LEFT = "left"


BOUND = (State.FETCHING, State.SERVING)


class Seat:
    """Machine of one seat; ``number`` 0 is the home, 1 the second seat."""

    def __init__(self, context: Context, number: int, prospects: Prospects) -> None:
        self.number = number
        self.state = State.FREE
        self.bid: Bid | None = None
        self.leaving: Bid | None = None
        """The old stage of a move, served until the new one is."""
        self.moved_at = -INFINITY
        """When it last began a move, monotonic seconds."""
        self.held_at = INFINITY
        """When it got the tentative place it has, monotonic seconds."""
        self.prospects = prospects
        self._context = context
        self.due_at = INFINITY
        """When ``tick`` has something to do, monotonic seconds."""
        self._last_words = ""

    @property
    def stage(self) -> Stage | None:
        """The stage it fetches or serves."""
        return self.bid.stage if self.bid and self.state in BOUND else None

    @property
    def rests_at(self) -> Stage | None:
        """The stage it serves, unless it is moving."""
        return self.stage if self.state is State.SERVING and not self.leaving else None

    @property
    def advertised(self) -> Stage | None:
        """The stage it serves or fetches; during a move still the old one."""
        return self.leaving.stage if self.leaving else self.stage

    @property
    def kept_by(self) -> Stage | None:
        """The stage that keeps it, for good or until the gang start."""
        return self.bid.stage if self.bid and self.state is State.HELD else self.advertised

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Every stage it fetches or serves with this seat: two during a move."""
        held = () if self.stage is None else (self.stage,)
        return (*held, self.leaving.stage) if self.leaving else held

    # --- inputs from this peer --------------------------------------------------------------

    def move_to(self, stage: Stage, reason: str, now: float) -> list[Effect]:
        """Leave the stage we serve for another one that wants us, make before break."""
        notice = self._context.board.notices(now).get(stage)
        if self.state is not State.SERVING or self.bid is None or notice is None:
            return []
        if self.leaving or stage == self.bid.stage:
            return []
        self.leaving, self.moved_at = self.bid, now
        self.bid = Bid.on(notice, self._context.number(now))
        self.state = State.FETCHING
        said = self._say(
            f"moving from stage {self.leaving.stage} to stage {stage}: {reason}", "place"
        )
        return [Assign(stage, reason), *self._renew(self.bid, now), *said]

    def serving(self, stage: Stage, now: float) -> list[Effect]:
        """Note that the training side has verified the stage's state and serves it.

        Raises:
            LocalProtocolError: the stage was not assigned.
        """
        bid, old = self._assigned(stage), self.leaving
        self.state, self.leaving = State.SERVING, None
        said = self._say(f"serving stage {stage}", "hold")
        if old is None:
            return [*self._renew(bid, now), *said]
        words = f"moved to stage {stage}"
        gone = [self._withdraw(old, words, now), Unassign(old.stage, words)]
        return [*self._renew(bid, now), *said, *gone]

    def lost(self, stage: Stage, reason: str, now: float) -> list[Effect]:
        """Give up a stage that the training side cannot serve any more, and look for another.

        A failed move leaves us at the old stage.

        Raises:
            LocalProtocolError: the stage was not assigned.
        """
        said = self._say(f"lost stage {stage}: {reason}")
        if self.leaving and stage == self.leaving.stage:
            gone = self._withdraw(self.leaving, reason, now)
            self.leaving = None
            return [gone, *said]
        gone = self._withdraw(self._assigned(stage), reason, now)
        if self.leaving:
            self.bid, self.leaving, self.state = self.leaving, None, State.SERVING
            return [gone, *said, *self._renew(self.bid, now)]
        self._free()
        return [gone, *said, *self.look(now)]

    def release(self, reason: str, now: float) -> list[Effect]:
        """Give up every place of this seat."""
        effects: list[Effect] = [Unassign(stage, reason) for stage in self.stages]
        for bid in filter(None, (self.bid, self.leaving)):
            effects.append(self._withdraw(bid, reason, now))
        self.leaving = None
        self._free()
        return effects

    def leave(self, now: float) -> list[Effect]:
        """Withdraw from all stages and never propose again."""
        effects = self.release("the volunteer leaves", now)
        self.state = State.LEFT
        return effects

    # --- inputs from outside ----------------------------------------------------------------

    def look(self, now: float) -> list[Effect]:
        """Look at the changed context (postings, members)."""
        if self.state is State.FREE:
            return self._seek(now)
        notice = self._context.board.notices(now).get(self.bid.stage) if self.bid else None
        if self.bid is None or notice is None:
            return []
        if notice.source != (self.bid.steward, self.bid.mandate):
            if self.state is not State.PROPOSED:
                return self._renew(Bid.on(notice, self._context.number(now)), now)
            self._free()
            return self._seek(now)
        news = notice.posting.issued_ms > self.bid.answered_ms and not self.bid.tries
        if self.state is State.HELD and news and self.prospects.decided(notice.posting):
            return self._renew(self.bid, now)  # the answer was lost
        return []

    def receive(self, sender: PeerId, body: letters.ToVolunteer, now: float) -> list[Effect]:
        """Take a steward's answer; one that is not the newest about our bid has no effect."""
        bid = self.bid
        if sender not in self._context.population:
            return []
        if bid is None or (bid.stage, bid.steward) != (body.stage, sender):
            if isinstance(body, letters.Reject):
                return []
            stray = Bid(body.stage, sender, body.mandate, 0, 0)
            return [self._withdraw(stray, ELSEWHERE, now)]
        if not bid.is_answered_by(body):
            return []
        if isinstance(body, letters.Hold):
            return self._held(bid, body, now)
        return self._rejected(bid, body, now)

    def tick(self, now: float) -> list[Effect]:
        """Retry unanswered messages, renew the place, or look for one."""
        if now < self.due_at:
            return []
        self.due_at = INFINITY
        if self.state is State.FREE:
            return self._seek(now)
        if self.bid is None:
            return []
        if self.state is State.PROPOSED and self.bid.tries >= MUTE_AFTER_TRIES:
            return self._pass_over(self.bid, now)
        if not self.bid.tries:
            return self._renew(self.bid, now)
        return self._ask(replace(self.bid, tries=self.bid.tries + 1), now)

    # --- seeking ----------------------------------------------------------------------------

    def _seek(self, now: float) -> list[Effect]:
        """Propose to the best stage, or say why not."""
        self.due_at = INFINITY
        notices = self._context.board.notices(now)
        if self._context.me not in self._context.population or not notices:
            return []
        absence_end = self.prospects.wait_until(notices, now)
        if absence_end is not None:
            self.due_at = absence_end
            return []
        best = self.prospects.best(notices, now)
        if best is None:
            self.due_at = self.prospects.retry_at(now)
            return self._say(self.prospects.in_words(notices, now))
        return self._propose(notices[best], now)

    def _propose(self, notice: Notice, now: float) -> list[Effect]:
        bid = Bid.on(notice, self._context.number(now))
        self.state = State.PROPOSED
        rate = self._context.population.rate(self._context.me, bid.stage)
        has = f"it has {describe(notice.posting)}; we bring {words(rate)}"
        return [
            *self._ask(bid, now),
            *self._say(f"proposing to stage {bid.stage}: {has}", "proposal"),
        ]

    def _pass_over(self, bid: Bid, now: float) -> list[Effect]:
        self.prospects.mute(bid.stage, now)
        self._free()
        return [
            self._withdraw(bid, "no answer", now),
            *self._say(f"the steward of stage {bid.stage} does not answer"),
            *self._seek(now),
        ]

    # --- answers ----------------------------------------------------------------------------

    def _held(self, bid: Bid, body: letters.Hold, now: float) -> list[Effect]:
        tries = 0 if body.asked_ms >= bid.asked_ms else bid.tries
        self.bid = bid = replace(bid, answered_ms=body.issued_ms, tries=tries)
        if self.state in BOUND:
            shown = self._context.me in self._context.population.holders(bid.stage)
            self.due_at = INFINITY if shown else now + LEASE_S / RENEWALS
            return []
        self.state, self.held_at = State.HELD, min(self.held_at, now)
        self.due_at = now + HASTE_S
        if not body.locked:
            return self._say(f"held by stage {bid.stage} until all stages are covered", "hold")
        self.state = State.FETCHING
        beside = "beside our main stage" if self.number else "and every stage is covered"
        reason = f"stage {bid.stage} keeps us {beside}"
        said = self._say(reason, "hold")
        return [Assign(bid.stage, reason), *self._renew(bid, now), *said]

    def _rejected(self, bid: Bid, body: letters.Reject, now: float) -> list[Effect]:
        if self.state in BOUND:  # a steward that does not know a replica cannot stop it
            self.bid = replace(bid, tries=0, answered_ms=body.issued_ms)
            self.due_at = now + HASTE_S
            return self._say(f"stage {bid.stage} does not know us ({body.reason}); serving on")
        self.prospects.refuse(bid.stage, bid.mandate, body.epoch)
        self._free()
        said = self._say(f"stage {bid.stage} keeps others: it has {body.reason}", "rejection")
        return [*said, *self._seek(now)]

    # --- repetition -------------------------------------------------------------------------

    def _renew(self, bid: Bid, now: float) -> list[Effect]:
        return self._ask(replace(bid, asked_ms=self._context.number(now), tries=1), now)

    def _ask(self, bid: Bid, now: float) -> list[Effect]:
        """Ask for a place or renew it."""
        self.bid, self.due_at = bid, now + ANSWER_S
        body = letters.Propose(
            stage=bid.stage,
            mandate=bid.mandate,
            issued_ms=self._context.number(now),
            seat=self.number,
            bound=self.state in BOUND,
        )
        return [Send(bid.steward, Letter(body))]

    def _withdraw(self, bid: Bid, reason: str, now: float) -> Effect:
        body = letters.Withdraw(
            stage=bid.stage,
            mandate=bid.mandate,
            issued_ms=self._context.number(now),
            reason=reason[: limits.MAX_REASON_CHARS],
        )
        return Send(bid.steward, Letter(body))

    # --- state ------------------------------------------------------------------------------

    def _free(self) -> None:
        self.state = State.FREE
        self.bid = None
        self.due_at = self.held_at = INFINITY

    def _assigned(self, stage: Stage) -> Bid:
        if self.bid is None or self.stage != stage:
            raise LocalProtocolError(f"stage {stage} is not assigned to this volunteer")
        return self.bid

    def _say(self, text: str, decision: Decision = "") -> list[Effect]:
        """Explain, unless these were the last words."""
        if text in ("", self._last_words):
            return []
        self._last_words = text
        return [Explain("matching", text, decision=decision)]
