"""The volunteer's bid: the place it asks for or holds, and what it writes to the steward.

Pure functions of the bid and the context.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol import limits
from protocol.effects import SendSigned
from protocol.ids import PeerId, Stage
from protocol.matching import bodies
from protocol.matching.board import Notice
from protocol.matching.bodies import Mandate
from protocol.matching.context import Context


@dataclass(frozen=True, slots=True)
class Bid:
    """One place with one steward, and the conversation about it."""

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

    @classmethod
    def on(cls, notice: Notice, number: int) -> Bid:
        """Begin a conversation with the steward that wrote a posting."""
        posting = notice.posting
        stage = bodies.stage_of(posting)
        return cls(stage, notice.author, posting.mandate, posting.epoch, number, number)

    def is_answered_by(self, body: bodies.ToVolunteer) -> bool:
        """Tell whether a body is the steward's newest word about this bid."""
        ours = self.first_version <= body.version <= self.version
        return ours and body.issued_ms > self.answered_ms


def proposal(
    context: Context, bid: Bid, kind: type[bodies.Propose], status: bodies.Status, now: float
) -> SendSigned:
    """Ask for a place, or renew it (``kind`` Renew)."""
    me, population = context.me, context.population
    wait_s = population.download_s(me, bid.stage) if me in population else 0.0
    body = kind(
        stage=bid.stage,
        mandate=bid.mandate,
        issued_ms=context.number(now),
        steward=bid.steward,
        epoch=bid.epoch,
        version=bid.version,
        seat=0,
        rate=population.rate(me, bid.stage),
        download_ms=int(min(wait_s, 2.0**31) * 1000),
        status=status,
    )
    return SendSigned(bid.steward, bodies.KINDS[kind], bodies.encode_body(body))


def withdrawal(context: Context, bid: Bid, reason: str, now: float) -> SendSigned:
    """Give a place up."""
    number = context.number(now)
    body = bodies.Withdraw(
        stage=bid.stage,
        mandate=bid.mandate,
        issued_ms=number,
        steward=bid.steward,
        version=number,
        reason=reason[: limits.MAX_REASON_CHARS],
    )
    return SendSigned(bid.steward, bodies.KINDS[bodies.Withdraw], bodies.encode_body(body))


def refusal_of_hold(context: Context, steward: PeerId, hold: bodies.Hold, now: float) -> SendSigned:
    """Answer a hold that we do not want (any more)."""
    stage, version = bodies.stage_of(hold), hold.version
    stray = Bid(stage, steward, hold.mandate, hold.epoch, version, version)
    return withdrawal(context, stray, "placed elsewhere", now)
