"""Whose word counts for what: a message is only heard from a seat that may send it.

A stranger that merely linked to us cannot make us keep tensors or disturb a round; it has to hold
the seat first, which takes the matching and our heartbeats.
"""

from __future__ import annotations

from protocol.effects import Penalise, Send
from protocol.ids import PeerId
from protocol.pipeline.place import Place
from protocol.view import SwarmView
from protocol.wire.messages import (
    Admit,
    Backward,
    BlobOffer,
    Chunk,
    Commit,
    CommitAck,
    Forward,
    Have,
    JoinStage,
    Lease,
    LeaseRequest,
    LedgerReport,
    Message,
    NoBlob,
    Plan,
    Ready,
    Receipt,
    Reduced,
    Returned,
    Segment,
    Verdict,
)


def addressed_stage(message: Message) -> int | None:
    """Return the stage whose seat a message is for; None if it is for no seat.

    A volunteer may hold several stages, and two of them talk to each other like strangers. A
    receipt names the stage that answers, so it is for the stage before; leases are stage 0's.
    """
    match message:
        case Receipt():
            return message.stage - 1
        case Lease() | LeaseRequest():
            return 0
        case Forward() | Backward() | Have() | Returned():
            return message.stage
        case LedgerReport() | Plan() | Segment() | Reduced() | Ready() | Commit() | CommitAck():
            return message.stage
        case JoinStage() | Admit() | BlobOffer() | NoBlob() | Chunk():
            return message.stage
        case _:
            return None


def is_for(send: Send, place: Place) -> bool:
    """Whether a message is for the seat that sends it; our seat in another stage is elsewhere."""
    return send.peer == place.me and addressed_stage(send.message) == place.stage


def may_say(view: SwarmView, stage: int, sender: PeerId, message: Message) -> bool:
    """Return whether ``sender`` holds a seat from which this message to ``stage`` makes sense."""
    match message:
        case JoinStage():
            return True  # that is how one gets a seat
        case Forward() | Have() | Returned():
            return _holds(view, stage - 1, sender)
        case Backward() | Receipt():
            return _holds(view, stage + 1, sender)
        case Plan() | Commit():  # who leads serves, and has said so before it was taken for leader
            return any(replica.peer == sender for replica in view.serving(stage))
        case _:
            return _holds(view, stage, sender)


def unheard(stage: int, sender: PeerId, message: Message) -> list[Send | Penalise]:
    """Answer a message that does not count; perhaps the sender's heartbeat is still on its way."""
    if isinstance(message, Forward):
        return [Send(sender, answer(stage, message, "busy"))]
    return [Penalise(sender, "not-from-a-neighbour", 1)]


def set_aside(stage: int, sender: PeerId, message: Message) -> list[Send | Penalise]:
    """Answer one that is set aside: it may be honest, and nothing that it says now is a fault."""
    return [Send(sender, answer(stage, message, "busy"))] if isinstance(message, Forward) else []


def answer(stage: int, message: Forward, verdict: Verdict) -> Receipt:
    """Return the receipt for a Forward that was not taken in."""
    return Receipt(stage, message.step, message.microbatch, message.attempt, verdict, 0)


def _holds(view: SwarmView, stage: int, peer: PeerId) -> bool:
    if not 0 <= stage < len(view.stages):
        return False
    return any(replica.peer == peer for replica in view.stages[stage])
