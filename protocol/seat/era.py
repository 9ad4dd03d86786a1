"""Eras: after a roll-back, messages of the earlier lineage must not count.

A seat belongs to one era and stamps it on every message; its parts know nothing of it. A message of
another era is answered only if the sender would otherwise wait.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from protocol.effects import Send
from protocol.ids import PeerId
from protocol.pipeline.effects import SendPayload
from protocol.seat.effects import SeatEffect
from protocol.wire.messages import Forward, Message, Receipt


def era_of(message: Message, otherwise: int) -> int:
    """Return the era of a message; ``otherwise`` for one that belongs to none."""
    return getattr(message, "era", otherwise)


def other_era(stage: int, sender: PeerId, message: Message) -> list[SeatEffect]:
    """Answer ``sender``'s message of another era to ``stage``: refuse a Forward, ignore others."""
    if not isinstance(message, Forward):
        return []
    step, microbatch, attempt = message.step, message.microbatch, message.attempt
    return [Send(sender, Receipt(stage, step, microbatch, attempt, "stale", 0, message.era))]


def stamped(effects: Iterable[SeatEffect], era: int) -> list[SeatEffect]:
    """Return the effects with our era on every message that has one (0 is there already)."""
    if era == 0:
        return list(effects)
    return [_stamp(effect, era) for effect in effects]


def _stamp(effect: SeatEffect, era: int) -> SeatEffect:
    match effect:
        case Send(peer, message) if hasattr(message, "era"):
            return Send(peer, msgspec.structs.replace(message, era=era))
        case SendPayload(peer, message, keys) if hasattr(message, "era"):
            return SendPayload(peer, msgspec.structs.replace(message, era=era), keys)
        case _:
            return effect
