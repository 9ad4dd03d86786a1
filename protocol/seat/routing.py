"""Checks senders: a message is accepted only from a seat that may send it.

A stranger that is merely linked with us cannot make us keep tensors or disturb a round. It must
hold a seat first, which takes the matching and our heartbeats.

A seat belongs to one lineage (era) and stamps it on all that it says; its parts know nothing of it.
After a roll-back, messages of the time before do not count: they are answered only where the sender
would otherwise wait.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from protocol.effects import Send
from protocol.ids import PeerId
from protocol.pipeline.effects import SendPayload
from protocol.seat.effects import SeatEffect
from protocol.view import SwarmView
from protocol.wire.messages import Forward, Message, Receipt, SeatMessage
from protocol.wire.route import Route, Sender

FROM: Final[Mapping[Sender, Sequence[int]]] = {
    "stage before": (-1,),
    "stage": (0,),
    "stage after": (1,),
    "near": (-1, 0, 1),
}
"""The stages, from the receiver's, in one of which a sender has to hold a seat."""


def may_send(route: Route, view: SwarmView, stage: int, sender: PeerId) -> bool:
    """Return whether ``sender`` holds, in ``view``, a seat from which a message of ``route`` to
    ``stage`` counts."""
    if route.sender == "serves stage":  # who leads has said so before it was taken for leader
        return any(replica.peer == sender for replica in view.serving(stage))
    if (away := FROM.get(route.sender)) is None:
        return True
    near = [stage + number for number in away if 0 <= stage + number < len(view.stages)]
    return any(replica.peer == sender for there in near for replica in view.stages[there])


def turned_away(stage: int, sender: PeerId, message: Message) -> list[SeatEffect]:
    """Return the refusal of ``sender``'s ``message`` to ``stage``: only a Forward is answered,
    because its sender would wait, in the era in which it was sent."""
    if not isinstance(message, Forward):
        return []
    said = Receipt(stage, message.step, message.microbatch, "busy", era=message.era)
    return [Send(sender, said)]


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
