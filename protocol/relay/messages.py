"""The messages of a relay: one opens a stream between a relay and a linked peer, one answers it.
Two linked peers ask each other about their link in the same way.

They never name their sender: that is who proved its identity on the link. After an answered
``Connect`` and ``Stop`` the two streams carry the bytes of a circuit. Over the circuit its two ends
agree by the same kind of messages on a moment to dial each other
(``client/net/punching.py``).
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from protocol.wire.canonical import Format
from protocol.wire.fields import PeerText

MAX_RELAY_MESSAGE_BYTES: Final = 4096

PROBE_FILLER_BYTES: Final = 640
"""More than a prober sends for a request: three SYNs, or a dial and the first half of a handshake,
each with the headers of its packets."""
FIRST_PORT: Final = 1024
"""No service of the system listens from there on."""

HostText = Annotated[str, Meta(max_length=45)]
"""A host as a number."""
Code = Literal[
    "ok",
    "not-offered",  # the relay does not relay, or no longer
    "full",  # all places are taken
    "no-reservation",  # the target has none here
    "not-a-member",  # reservations are for members
    "over-a-circuit",  # the asker, or the target, is linked with the relay through a relay
    "own-circuit",  # the asker and the target are the same
    "too-often",  # the asker asks too often
    "unreachable",  # the target did not agree, or the asker has not proved its identity there
    "no-circuit",  # the asker has none to the target
    "unmapped",  # who is asked to punch does not know its place yet
    "elsewhere",  # the relay does not see the asker there
    "busy",  # it has not admitted the asker yet, or dials it already, or too many others
]


class RelayWire(Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Base of the messages."""


class Reserve(RelayWire, frozen=True):
    """Asks a relay to pass circuits on to us, while this stream lasts."""


class Connect(RelayWire, frozen=True):
    """Asks a relay for a circuit to a peer that has a reservation there."""

    target: PeerText


class WhereIs(RelayWire, frozen=True):
    """Asks a relay where it sees the other end of a circuit of ours."""

    target: PeerText


class Stop(RelayWire, frozen=True):
    """A relay tells a peer with a reservation that ``asker`` wants a circuit to it."""

    asker: PeerText


class Status(RelayWire, frozen=True):
    """The answer to Reserve, Connect, WhereIs, Stop, DialBack and Moving, and of who does not take
    part in a Punch."""

    code: Code
    host: HostText = ""
    """Where the relay sees the target of a WhereIs, a number."""


class DialBack(RelayWire, frozen=True):
    """Asks a member to dial us at the address at which it sees us, to learn whether that works. The
    filler makes the request dearer than the answer."""

    port: Annotated[int, Meta(ge=1, le=65535)]
    filler: Annotated[bytes, Meta(min_length=PROBE_FILLER_BYTES, max_length=PROBE_FILLER_BYTES)]


class Moving(RelayWire, frozen=True):
    """The sender is about to dial the receiver, beside a connection through a relay: what comes
    takes over without ending the link."""


class Punch(RelayWire, frozen=True):
    """Asks the other end of a circuit to dial us here, and answers that: others see us there."""

    host: HostText
    port: Annotated[int, Meta(ge=FIRST_PORT, le=65535)]


class PunchNow(RelayWire, frozen=True):
    """Dial now: when this arrives, its sender does so too."""


RelayMessage = Reserve | Connect | WhereIs | Stop | Status | DialBack | Moving | Punch | PunchNow

_messages: Final = Format[RelayMessage](RelayMessage, "relay-message")
encode_relay_message, decode_relay_message = _messages.encode, _messages.parse
