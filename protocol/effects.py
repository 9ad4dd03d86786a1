"""Effects: the actions that a state machine requests. Machines return them; drivers perform them.

Effects of one machine only (such as compute tasks of the pipeline) are defined beside it; these are
common to all machines.
"""

from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from protocol.ids import PeerId
from protocol.wire.messages import Message


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message that carries no payload."""

    peer: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class Publish:
    """Sign what we say as our record of a kind, and spread it; it replaces an older one."""

    kind: str
    said: Struct


@dataclass(frozen=True, slots=True)
class Penalise:
    """Add ``points`` to a peer's score for breaking a rule."""

    peer: PeerId
    reason: str
    points: int = 10


Level = Literal["debug", "info", "warning", "error"]
Topic = Literal["membership", "matching", "pipeline", "round", "transfer", "swarm"]
Decision = Literal["", "proposal", "hold", "rejection", "place", "settled"]
"""What the matching has decided; empty: nothing."""


@dataclass(frozen=True, slots=True)
class Explain:
    """Tell the user why something happened (or did not): words for people, fields for programs."""

    topic: Topic
    words: str
    level: Level = "info"
    members: tuple[PeerId, ...] = ()
    """Those that the words name by the ends of their ids."""
    decision: Decision = ""
    over: str = ""
    """The words of an error that is over now."""


Effect = Send | Publish | Penalise | Explain
