"""Checks senders: a message is accepted only from a seat that may send it.

A stranger that is merely linked with us cannot make us keep tensors or disturb a round. It must
hold a seat first, which takes the matching and our heartbeats.

A seat belongs to one lineage (era) and stamps it on all that it says; its parts know nothing of it.
After a roll-back, messages of the time before do not count: they are answered only where the sender
would otherwise wait.
"""

from collections.abc import Iterable

import msgspec

from protocol.effects import Send
from protocol.ids import PeerId
from protocol.pipeline.effects import SendPayload
from protocol.seat.effects import SeatEffect
from protocol.view import SwarmView
from protocol.wire.messages import Forward, Message, Receipt, SeatMessage, Verdict
from protocol.wire.route import Route


def may_send(route: Route, view: SwarmView, stage: int, sender: PeerId) -> bool:
    """Return whether ``sender`` holds, in ``view``, a seat from which a message of ``route`` to
    ``stage`` counts."""
    match route.sender:
        case "stage before":
            return _holds(view, stage - 1, sender)
        case "stage after":
            return _holds(view, stage + 1, sender)
        case "stage":
            return _holds(view, stage, sender)
        case "near":
            return any(_holds(view, near, sender) for near in (stage - 1, stage, stage + 1))
        case "serves stage":  # who leads serves, and has said so before it was taken for leader
            return any(replica.peer == sender for replica in view.serving(stage))
        case _:
            return True


def turned_away(stage: int, sender: PeerId, message: Message, verdict: Verdict) -> list[SeatEffect]:
    """Return the refusal of ``sender``'s ``message`` to ``stage`` with a ``verdict``: only a
    Forward is answered, because its sender would wait, in the era in which it was sent."""
    if not isinstance(message, Forward):
        return []
    of = stage, message.step, message.microbatch, message.attempt
    return [Send(sender, Receipt(*of, verdict, era=message.era))]


def _holds(view: SwarmView, stage: int, peer: PeerId) -> bool:
    if not 0 <= stage < len(view.stages):
        return False
    return any(replica.peer == peer for replica in view.stages[stage])


def stamped(effects: Iterable[SeatEffect], era: int) -> list[SeatEffect]:
    """Return the effects with our era on every message that has one (0 is there already)."""
    if era == 0:
        return list(effects)
    return [_stamp(effect, era) for effect in effects]


def _stamp(effect: SeatEffect, era: int) -> SeatEffect:
    match effect:
        case Send(peer, SeatMessage() as message):
            return Send(peer, msgspec.structs.replace(message, era=era))
        case SendPayload(peer, SeatMessage() as message, keys):
            return SendPayload(peer, msgspec.structs.replace(message, era=era), keys)
        case _:
            return effect
