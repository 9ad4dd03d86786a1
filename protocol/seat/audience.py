"""Whose word counts for what: a message is only heard from a seat that may send it.

A stranger that merely linked to us cannot make us keep tensors or disturb a round; it has to hold
the seat first, which takes the matching and our heartbeats.
"""

from __future__ import annotations

from protocol.effects import Penalise, Send
from protocol.ids import PeerId
from protocol.pipeline.place import Place
from protocol.view import SwarmView
from protocol.wire.messages import Forward, Message, Receipt, Verdict
from protocol.wire.routes import Route, addressed_stage


def is_for(send: Send, place: Place) -> bool:
    """Whether a message is for the seat that sends it; our seat in another stage is elsewhere."""
    return send.peer == place.me and addressed_stage(send.message) == place.stage


def may_send(route: Route, view: SwarmView, stage: int, sender: PeerId) -> bool:
    """Return whether ``sender`` holds a seat from which this message to ``stage`` counts."""
    match route.sender:
        case "stage before":
            return _holds(view, stage - 1, sender)
        case "stage after":
            return _holds(view, stage + 1, sender)
        case "stage":
            return _holds(view, stage, sender)
        case "serves stage":  # who leads serves, and has said so before it was taken for leader
            return any(replica.peer == sender for replica in view.serving(stage))
        case _:
            return True


def unheard(stage: int, sender: PeerId, message: Message) -> list[Send | Penalise]:
    """Answer a message that does not count; perhaps the sender's heartbeat is still on its way."""
    refused = turned_away(stage, sender, message, "busy")
    return [*refused] or [Penalise(sender, "not-from-a-neighbour", 1)]


def turned_away(stage: int, sender: PeerId, message: Message, verdict: Verdict) -> list[Send]:
    """Answer a message that is not taken: a Forward's sender would wait, others need no answer."""
    return [Send(sender, answer(stage, message, verdict))] if isinstance(message, Forward) else []


def answer(stage: int, message: Forward, verdict: Verdict) -> Receipt:
    """Return the receipt for a Forward that was not taken in."""
    return Receipt(stage, message.step, message.microbatch, message.attempt, verdict, 0)


def _holds(view: SwarmView, stage: int, peer: PeerId) -> bool:
    if not 0 <= stage < len(view.stages):
        return False
    return any(replica.peer == peer for replica in view.stages[stage])
