"""What a source tells the interface, piece by piece in order."""

from dataclasses import dataclass
from typing import Literal

from client.control.snapshot import InviteView
from client.control.updates import Curve, Update
from client.store.last_run import Ending

LinkState = Literal["connecting", "live", "lost", "ended"]


@dataclass(frozen=True, slots=True)
class Link:
    """The state of the source."""

    state: LinkState
    """``live``, ``connecting``, ``lost``: trying again, ``ended``: the node has ended, until it is
    started again."""
    words: str = ""
    ending: Ending | None = None
    """The end of the node, where it is known."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command."""

    method: str
    ok: bool
    words: str
    invite: InviteView | None = None
    """The answer to ``invite``."""


News = Link | Curve | Update | Answer
