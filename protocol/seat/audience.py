"""Whose word counts for what: a message is only heard from a seat that may send it.

A stranger that merely linked to us cannot make us keep tensors or disturb a round; it has to hold
the seat first, which takes the matching and our heartbeats.
"""

from __future__ import annotations

from protocol.effects import Penalise, Send
from protocol.ids import PeerId
from protocol.view import SwarmView
from protocol.wire.messages import (
    Backward,
    Forward,
    Have,
    JoinStage,
    Message,
    Receipt,
    Verdict,
)


def may_say(view: SwarmView, stage: int, sender: PeerId, message: Message) -> bool:
    """Return whether ``sender`` holds a seat from which this message to ``stage`` makes sense."""
    match message:
        case JoinStage():
            return True  # that is how one gets a seat
        case Forward() | Have():
            return _holds(view, stage - 1, sender)
        case Backward() | Receipt():
            return _holds(view, stage + 1, sender)
        case _:
            return _holds(view, stage, sender)


def unheard(stage: int, sender: PeerId, message: Message) -> list[Send | Penalise]:
    """Answer a message that does not count; perhaps the sender's heartbeat is still on its way."""
    if isinstance(message, Forward):
        return [Send(sender, answer(stage, message, "busy"))]
    return [Penalise(sender, "not-from-a-neighbour", 1)]


def answer(stage: int, message: Forward, verdict: Verdict) -> Receipt:
    """Return the receipt for a Forward that was not taken in."""
    return Receipt(stage, message.step, message.microbatch, message.attempt, verdict, 0)


def _holds(view: SwarmView, stage: int, peer: PeerId) -> bool:
    if not 0 <= stage < len(view.stages):
        return False
    return any(replica.peer == peer for replica in view.stages[stage])
