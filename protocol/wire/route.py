"""Where a message goes: who takes it, from whom it counts, for which seat, and in which lane.

The class of a message names its route beside its fields; nothing else decides by type where a
message goes. The engine hands it to whoever takes it. A seat checks the ``sender`` against its view
and ``observing`` against its own state before it calls the handler.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal

from protocol import limits

Taker = Literal["node", "elector", "seat"]
"""The taker of a message: the engine of a node, the volunteer's elector, or the seat in a stage."""
Sender = Literal[
    "anyone", "peer", "member", "stage before", "stage after", "near", "stage", "serves stage"
]
"""Senders from which a message counts.

anyone: before its Hello is accepted, too. peer: another member, once admitted. member: an admitted
peer, or another stage of our own. The others are members that hold a seat, by the receiver's view:
in the stage before, the one after, the same one, or near, which is any of these three; or that
serve it.
"""
Address = Literal["stage", "stage before", "first"]
"""The stage whose seat a message is for: the one it names, the one before that, or stage 0."""
Lane = Literal["control", "bulk", "background"]
"""control: small messages; bulk: tensors that training waits for; background: state and text. Only
the last two carry payloads, so that these delay no small message."""
PAYLOAD_BYTES: Final[Mapping[Lane, int]] = {
    "control": 0,
    "bulk": limits.MAX_PAYLOAD_BYTES,
    "background": limits.CHUNK_BYTES,
}


@dataclass(frozen=True, slots=True)
class Route:
    """See the module's docstring.

    Args:
        taker: who takes it.
        handler: the method of the engine or of the seat, or of a part of it (``part.method``). It
            gets the sender and the message; in the engine also the payload, where there may be one.
        sender: from whom it counts.
        to: the stage whose seat it is for, if a seat takes it.
        lane: how it travels.
        observing: a seat takes it before it serves, too.
        early: what is said of a later step is kept until the seat gets there.
        sealed: the handler also gets the digest that names the payload.
        work: its payload is work done for the stage.
        aside: it counts from a replica that is set aside, too.
    """

    taker: Taker
    handler: str = ""
    _: KW_ONLY
    sender: Sender = "member"
    to: Address = "stage"
    lane: Lane = "control"
    observing: bool = False
    early: bool = False
    sealed: bool = False
    work: bool = False
    aside: bool = False

    @property
    def payload_limit(self) -> int:
        """The most payload bytes that may follow the message."""
        return PAYLOAD_BYTES[self.lane]
