"""The volunteer of one peer: finds a stage for its seat.

    FREE      looks at the postings and proposes to the stage of highest utility
    PROPOSED  waits for HOLD or REJECT, sends again, passes a mute steward over
    HELD      has a tentative place; waits for the gang start or for being let go
    FETCHING  the place is final: state is fetched
    SERVING   a replica; only ``lost`` and ``leave`` end it, never a steward
    LEFT      the user went away

Holds its state, its place and what it was refused; reads the outlook; decides nothing for others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from protocol import limits
from protocol.effects import Explain, SendSigned
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId, Stage
from protocol.matching import bodies, preferences
from protocol.matching.board import Notice, describe
from protocol.matching.bodies import COMMITTED, Mandate
from protocol.matching.effects import Assign, Effect, Unassign
from protocol.matching.outlook import Outlook
from protocol.matching.preferences import words
from protocol.matching.timing import (
    ABSENCE_S,
    MAX_RETRY_S,
    MUTE_AFTER_TRIES,
    MUTE_S,
    RENEW_S,
    RETRY_S,
    TENTATIVE_RENEW_S,
)

INFINITY = float("inf")


class State(Enum):
    """Where a volunteer is; the values are the status it tells stewards."""

    FREE = "free"
    PROPOSED = "proposed"
    HELD = "held"
    FETCHING = "fetching"
    SERVING = "serving"
    LEFT = "left"


BOUND = (State.FETCHING, State.SERVING)


@dataclass(frozen=True, slots=True)
class Bid:
    """The place asked for or held, and the conversation about it."""

    stage: Stage
    steward: PeerId
    mandate: Mandate
    epoch: int
    version: int
    """Number of our last message; answers to any of this bid's messages count."""
    first_version: int
    score: int = 0
    """As counted by the steward; 0 until it answered."""
    tries: int = 1
    """Times the last message was sent; 0 once it was answered."""
    answered_ms: int = 0
    """When the steward issued its last answer."""


class Volunteer:
    """Machine of one seat."""

    def __init__(self, outlook: Outlook) -> None:
        self.state = State.FREE
        self.bid: Bid | None = None
        self._outlook = outlook
        self._unable: dict[Stage, str] = {}
        self._refused: dict[Stage, tuple[Mandate, int]] = {}
        self._mute_until: dict[Stage, float] = {}
        self._absence_since: float | None = None
        self._due_at = INFINITY
        self._last_words = ""

    @property
    def stage(self) -> Stage | None:
        """The stage it fetches or serves."""
        return self.bid.stage if self.bid and self.state in BOUND else None

    # --- inputs from this peer --------------------------------------------------------------

    def set_unable(self, unable: Mapping[Stage, str], now: float) -> list[Effect]:
        """Name the stages this machine cannot serve, each with its reason in words."""
        self._unable = dict(unable)
        return self.look(now)

    def serving(self, stage: Stage, now: float) -> list[Effect]:
        """The training side has verified the stage's state and serves it.

        Raises:
            LocalProtocolError: the stage was not assigned.
        """
        bid = self._assigned(stage)
        self.state = State.SERVING
        return [*self._send_renewal(bid, now), *self._say(f"serving stage {stage}")]

    def lost(self, stage: Stage, reason: str, now: float) -> list[Effect]:
        """The training side cannot serve the stage any more: give the place up, look again.

        Raises:
            LocalProtocolError: the stage was not assigned.
        """
        gone = self._give_up(self._assigned(stage), reason, now)
        return [*gone, *self._say(f"lost stage {stage}: {reason}"), *self.look(now)]

    def leave(self, now: float) -> list[Effect]:
        """The user leaves: withdraw and never propose again."""
        bid, stage = self.bid, self.stage
        effects: list[Effect] = [Unassign(stage, "leaving")] if stage is not None else []
        if bid:
            effects += self._give_up(bid, "the volunteer leaves", now)
        self.state = State.LEFT
        self._due_at = INFINITY
        return [*effects, *self._say("left the matching")]

    # --- inputs from outside ----------------------------------------------------------------

    def look(self, now: float) -> list[Effect]:
        """Look at the changed outlook (postings, members)."""
        if self.state is State.FREE:
            return self._seek(now)
        if self.bid is None:
            return []
        notice = self._outlook.board.current(self.bid.stage, now)
        if notice is None:
            return []
        if notice.source != (self.bid.steward, self.bid.mandate):
            return self._follow(self.bid, notice, now)
        if self.state is State.HELD:
            return self._compare(self.bid, notice.posting, now)
        return []

    def receive(self, sender: PeerId, body: bodies.ToVolunteer, now: float) -> list[Effect]:
        """Take a steward's answer; what does not answer our last message is counted."""
        bid = self.bid
        refusal = self._refusal(sender, body)
        if refusal:
            self._outlook.counters[refusal] += 1
            return []
        if bid and (bid.stage, bid.steward) == (bodies.stage_of(body), sender):
            return self._answered(bid, body, now)
        if isinstance(body, bodies.Hold):
            return [self._withdrawal(sender, body, now)]
        self._outlook.counters["matching-late-answer"] += 1
        return []

    def tick(self, now: float) -> list[Effect]:
        """Send again what was not answered, renew, look again."""
        if now < self._due_at:
            return []
        self._due_at = INFINITY
        if self.state is State.FREE:
            return self._seek(now)
        if self.bid is None:
            return []
        if self.state is State.PROPOSED and self.bid.tries >= MUTE_AFTER_TRIES:
            return self._pass_over(self.bid, now)
        if self.state is State.PROPOSED or self.bid.tries:
            return self._send_again(self.bid, now)
        return self._send_renewal(self.bid, now)

    def next_deadline(self) -> float:
        """Return when ``tick`` has something to do, monotonic seconds."""
        return self._due_at

    # --- seeking ----------------------------------------------------------------------------

    def _seek(self, now: float) -> list[Effect]:
        """Propose to the best stage, or say why not."""
        self._due_at = INFINITY
        me, population = self._outlook.me, self._outlook.population
        notices = self._outlook.board.notices(now)
        if me not in population or not notices:
            return []
        if len(notices) == len(population.costs):
            self._absence_since = None
        elif self._absence_since is None:
            self._absence_since = now
        if self._absence_since is not None and now < self._absence_since + ABSENCE_S:
            self._due_at = self._absence_since + ABSENCE_S
            return []
        hopes = {s: n for s, n in notices.items() if self._obstacle(s, n.posting, now) is None}
        if not hopes:
            return self._wait(notices, now)
        best = max(hopes, key=lambda stage: (self.wish(stage, hopes[stage].posting), -stage))
        return self._propose(best, hopes[best], now)

    def wish(self, stage: Stage, posting: bodies.Posting) -> preferences.Wish:
        """Return our utility of a stage, from its posting."""
        me, population = self._outlook.me, self._outlook.population
        return preferences.wish(
            me,
            stage,
            rate=population.rate(me, stage),
            phi=population.phi(me, stage),
            level=posting.locked_level,
            replicas=posting.locked_replicas,
            r=posting.r,
        )

    def _obstacle(self, stage: Stage, posting: bodies.Posting, now: float) -> str | None:
        """Say why it is useless to propose to a stage now, or None."""
        me, population = self._outlook.me, self._outlook.population
        if stage in self._unable:
            return self._unable[stage]
        if not population.rate(me, stage):
            return "this machine is too small for it"
        if self._refused.get(stage, (posting.mandate, -1)) >= (posting.mandate, posting.epoch):
            return f"it has {describe(posting)}"
        if population.score(me, stage, posting.fair) <= posting.cutoff:
            return f"its cutoff is above us: {describe(posting)}"
        if now < self._mute_until.get(stage, now):
            return "its steward does not answer"
        return None

    def _wait(self, notices: Mapping[Stage, Notice], now: float) -> list[Effect]:
        reasons = ((s, self._obstacle(s, n.posting, now)) for s, n in sorted(notices.items()))
        mute = [until for until in self._mute_until.values() if until > now]
        self._due_at = min(mute, default=INFINITY)
        return self._say("no place: " + "; ".join(f"stage {s}: {why}" for s, why in reasons))

    def _propose(self, stage: Stage, notice: Notice, now: float) -> list[Effect]:
        me, population, posting = self._outlook.me, self._outlook.population, notice.posting
        number = self._outlook.number(now)
        bid = Bid(stage, notice.author, posting.mandate, posting.epoch, number, number)
        self.state = State.PROPOSED
        self.bid = bid
        self._due_at = now + RETRY_S
        why = f"proposing to stage {stage}: it has {describe(posting)}; we bring "
        why += f"{words(population.rate(me, stage))}"
        return [self._proposal(bid, bodies.Propose, now), *self._say(why)]

    def _pass_over(self, bid: Bid, now: float) -> list[Effect]:
        self._mute_until[bid.stage] = now + MUTE_S
        self._free()
        return [
            self._withdraw(bid, "no answer", now),
            *self._say(f"steward of stage {bid.stage} does not answer"),
            *self._seek(now),
        ]

    # --- answers ----------------------------------------------------------------------------

    def _refusal(self, sender: PeerId, body: bodies.ToVolunteer) -> str | None:
        if body.volunteer != self._outlook.me:
            return "matching-not-for-us"
        if sender not in self._outlook.population:
            return "matching-unknown-member"
        bid = self.bid
        if bid and (bid.steward, bid.stage) == (sender, body.stage) and bid.mandate != body.mandate:
            return "matching-other-mandate"
        return None

    def _answered(self, bid: Bid, body: bodies.ToVolunteer, now: float) -> list[Effect]:
        """Take the newest word of the steward about this bid; older ones are counted."""
        ours = bid.first_version <= body.version <= bid.version
        if not ours or body.issued_ms <= bid.answered_ms:
            self._outlook.counters["matching-late-answer"] += 1
            return []
        if isinstance(body, bodies.Hold):
            return self._held(bid, body, now)
        return self._rejected(bid, body, now)

    def _held(self, bid: Bid, body: bodies.Hold, now: float) -> list[Effect]:
        self.bid = replace(
            bid, epoch=body.epoch, score=body.score, tries=0, answered_ms=body.issued_ms
        )
        if self.state is State.PROPOSED:
            self.state = State.HELD
        self._due_at = now + (RENEW_S if self.state in BOUND else TENTATIVE_RENEW_S)
        if self.state in BOUND:
            return []
        if not body.locked:
            return self._say(f"held by stage {bid.stage} until all stages are covered")
        self.state = State.FETCHING
        reason = f"stage {bid.stage} keeps us and every stage is covered"
        return [Assign(bid.stage, reason), *self._send_renewal(bid, now), *self._say(reason)]

    def _rejected(self, bid: Bid, body: bodies.Reject, now: float) -> list[Effect]:
        if self.state in BOUND:  # a steward's ignorance does not stop a replica
            self.bid = replace(bid, tries=0, answered_ms=body.issued_ms)
            self._due_at = now + TENTATIVE_RENEW_S
            return self._say(f"stage {bid.stage} does not know us ({body.reason}); serving on")
        return self._turned_down(bid, body.epoch, body.reason, now)

    def _compare(self, bid: Bid, posting: bodies.Posting, now: float) -> list[Effect]:
        """See in a posting what a lost message would have told us."""
        if posting.epoch == bid.epoch and 0 < bid.score <= posting.cutoff:
            return self._turned_down(bid, posting.epoch, describe(posting), now)
        news = posting.issued_ms > bid.answered_ms
        if posting.phase == COMMITTED and news and not bid.tries:
            return self._send_renewal(bid, now)
        return []

    def _turned_down(self, bid: Bid, epoch: int, why: str, now: float) -> list[Effect]:
        self._refused[bid.stage] = (bid.mandate, epoch)
        self._free()
        return [*self._say(f"stage {bid.stage} keeps others: it has {why}"), *self._seek(now)]

    def _follow(self, bid: Bid, notice: Notice, now: float) -> list[Effect]:
        """The stage has another steward or mandate: ask there, with what we are."""
        posting = notice.posting
        renewed = replace(
            bid,
            steward=notice.author,
            mandate=posting.mandate,
            epoch=posting.epoch,
            score=0,
            answered_ms=0,
            first_version=self._outlook.number(now),
        )
        if self.state is State.PROPOSED:
            self._free()
            return self._seek(now)
        return self._send_renewal(renewed, now)

    # --- messages ---------------------------------------------------------------------------

    def _send_renewal(self, bid: Bid, now: float) -> list[Effect]:
        self.bid = replace(bid, version=self._outlook.number(now), tries=1)
        self._due_at = now + RETRY_S
        return [self._proposal(self.bid, bodies.Renew, now)]

    def _send_again(self, bid: Bid, now: float) -> list[Effect]:
        self.bid = replace(bid, tries=bid.tries + 1)
        self._due_at = now + min(RETRY_S * 2**bid.tries, MAX_RETRY_S)
        proposed = self.state is State.PROPOSED
        return [self._proposal(bid, bodies.Propose if proposed else bodies.Renew, now)]

    def _proposal(self, bid: Bid, kind: type[bodies.Propose], now: float) -> SendSigned:
        me, population = self._outlook.me, self._outlook.population
        member = me in population
        wait_s = population.download_s(me, bid.stage) if member else 0.0
        body = kind(
            stage=bid.stage,
            mandate=bid.mandate,
            issued_ms=self._outlook.number(now),
            steward=bid.steward,
            epoch=bid.epoch,
            version=bid.version,
            seat=0,
            rate=population.rate(me, bid.stage),
            download_ms=int(min(wait_s, 2.0**31) * 1000),
            status="free" if self.state is State.PROPOSED else self._status(),
        )
        return SendSigned(bid.steward, bodies.KINDS[kind], bodies.encode_body(body))

    def _status(self) -> bodies.Status:
        known: dict[State, bodies.Status] = {
            State.HELD: "held",
            State.FETCHING: "fetching",
            State.SERVING: "serving",
        }
        return known.get(self.state, "free")

    def _withdraw(self, bid: Bid, reason: str, now: float) -> SendSigned:
        number = self._outlook.number(now)
        body = bodies.Withdraw(
            stage=bid.stage,
            mandate=bid.mandate,
            issued_ms=number,
            steward=bid.steward,
            version=number,
            reason=reason[: limits.MAX_REASON_CHARS],
        )
        return SendSigned(bid.steward, bodies.KINDS[bodies.Withdraw], bodies.encode_body(body))

    def _withdrawal(self, sender: PeerId, body: bodies.Hold, now: float) -> SendSigned:
        """Answer a hold we do not want (any more)."""
        stage = bodies.stage_of(body)
        stray = Bid(stage, sender, body.mandate, body.epoch, body.version, body.version)
        return self._withdraw(stray, "placed elsewhere", now)

    # --- state ------------------------------------------------------------------------------

    def _give_up(self, bid: Bid, reason: str, now: float) -> list[Effect]:
        self._free()
        return [self._withdraw(bid, reason, now)]

    def _free(self) -> None:
        self.state = State.FREE
        self.bid = None
        self._due_at = INFINITY

    def _assigned(self, stage: Stage) -> Bid:
        if self.bid is None or self.stage != stage:
            raise LocalProtocolError(f"stage {stage} is not assigned to this volunteer")
        return self.bid

    def _say(self, text: str) -> list[Effect]:
        """Explain, unless it was the last thing said."""
        if text == self._last_words:
            return []
        self._last_words = text
        return [Explain("matching", text)]
