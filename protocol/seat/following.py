"""Whether a replica keeps up with its siblings.

A sibling that serves a later version has the commit of our step, which may have been lost on its
way; it is asked for it now and then. The votes in the commit prove what it says (``decree``). A
replica that has it and cannot apply it for ``STUCK_S`` lacks what it takes, and fetches the state.
Who has slept for so long that nobody has that commit any more sees that siblings are ahead and that
it is out of touch with the electors that it knows; then it could close nothing anyway, and fetches
the state, too. State: since when that is so, and when we have asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from protocol.effects import Send
from protocol.ids import PeerId
from protocol.pipeline.effects import Fault
from protocol.wire.messages import CommitRequest

ASK_S: Final = 0.5
ASKED: Final = 3
"""Siblings at a time."""
OUT_OF_TOUCH_S: Final = 30.0
STUCK_S: Final = 6.0


class Following:
    """See the module's docstring; ``stage`` is ours."""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._since: float | None = None
        self._stuck_since: float | None = None
        self._asked_at = -math.inf
        self._turn = 0

    def caught_up(self) -> None:
        """Our version has risen, or nobody is ahead of it."""
        self._since = self._stuck_since = None
        self._asked_at = -math.inf

    def look(
        self, ahead: Sequence[PeerId], step: int, now: float, *, known: bool, alone: bool
    ) -> list[Send | Fault]:
        """Ask those who are ahead, if it is time to; say when there is no catching up.

        Args:
            ahead: the siblings that say that they serve a later version.
            step: ours.
            now: monotonic seconds.
            known: whether we have the step's commit.
            alone: whether nobody could give it to us, or we are out of touch with the electors.
        """
        if not ahead:
            self.caught_up()
            return []
        self._stuck_since = (self._stuck_since or now) if known else None
        self._since = (self._since or now) if alone and not known else None
        lost = self._since is not None and now >= self._since + OUT_OF_TOUCH_S
        if lost or (self._stuck_since is not None and now >= self._stuck_since + STUCK_S):
            self.caught_up()
            return [Fault("behind", f"siblings have moved on from version {step}")]
        if known or now < self._asked_at + ASK_S:
            return []
        self._asked_at, self._turn = now, self._turn + 1
        some = [ahead[(self._turn + i) % len(ahead)] for i in range(min(ASKED, len(ahead)))]
        return [Send(peer, CommitRequest(self._stage, step)) for peer in some]

    def next_deadline(self) -> float | None:
        """Return when to look again."""
        asks = None if self._asked_at == -math.inf else self._asked_at + ASK_S
        stuck = None if self._stuck_since is None else self._stuck_since + STUCK_S
        return min((at for at in (asks, stuck) if at is not None), default=None)
