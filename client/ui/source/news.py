"""What a source tells the interface, piece by piece in order."""

from dataclasses import dataclass
from typing import Final, Literal

from client.control.snapshot import InviteView
from client.control.updates import Curve, Update

UNKNOWN: Final = "it may be busy, or have ended: run volunteer status"
LinkState = Literal["connecting", "live", "lost", "ended"]


@dataclass(frozen=True, slots=True)
class Link:
    """The state of the source."""

    state: LinkState
    """``live``, ``connecting``, ``lost``: trying again, ``ended``: the node has ended, until it is
    started again."""
    words: str = ""
    why: str = "the volunteer does not answer"
    """The reason where no node answers, in one sentence."""
    next_step: str = UNKNOWN
    """What to do then."""

    @property
    def gone(self) -> bool:
        """Whether no node answers, so that everything shown is out of date."""
        return self.state in ("lost", "ended")


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command."""

    method: str
    ok: bool
    words: str
    invite: InviteView | None = None
    """The answer to ``invite``."""


News = Link | Curve | Update | Answer
