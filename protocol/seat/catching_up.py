"""Whether a replica keeps up with its siblings.

A sibling that serves a later version has the commit of our step, which may have been lost on its
way, and so has a replica beside our stage that is two versions ahead; they are asked for it now and
then. If none of them answers, the next leader in line asks the electors. Who cannot apply a commit,
or can get none, fetches the state after a while (SPEC.md, section 13).
State: which of these it is and since when, and when we have asked.
"""

import math
from collections.abc import Sequence
from typing import Final

from protocol.effects import Send
from protocol.ids import PeerId
from protocol.pace import FORGET_S, LOOK_S, LOST_S
from protocol.pipeline.effects import Fault
from protocol.wire.messages import Propose

ASKED: Final = 3
"""At a time."""


class CatchingUp:
    """See the module's docstring; ``stage`` is ours."""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._turn = 0
        self.caught_up()

    def caught_up(self) -> None:
        """Our version has risen or is being made, or nobody is ahead of it."""
        self._how: tuple[bool, bool] | None = None
        """Whether we have the step's commit, and whether nobody could give it to us."""
        self._since = self._asked_at = -math.inf
        self.passed = False
        """Whether our electors have shown by a later commit that our step is closed."""
        self.unanswered = False
        """Whether siblings are ahead, and have been asked for the commit in vain."""

    def look(
        self,
        ahead: Sequence[PeerId],
        beside: Sequence[PeerId],
        step: int,
        now: float,
        *,
        known: bool,
        alone: bool,
    ) -> list[Send | Fault]:
        """Ask those who are ahead, if it is time to; say when there is no catching up.

        Args:
            ahead: the siblings that say that they serve a later version.
            beside: the replicas beside our stage that say that it must have gone on.
            step: ours.
            now: monotonic seconds.
            known: whether we have the step's commit.
            alone: whether nobody could give it to us, or we are out of touch with the electors.
        """
        asked = [*ahead, *beside]
        if not asked or (known and not ahead):  # or nobody is there to give us the state
            self.caught_up()
            return []
        how = known, alone and not known
        if self._how != how:
            self._how, self._since = how, now
        waited_s = now - self._since
        self.unanswered = not known and bool(ahead) and waited_s >= LOOK_S / 2
        patience_s = LOST_S if known or self.passed else FORGET_S if alone else math.inf
        if waited_s >= patience_s:
            self.caught_up()
            return [Fault("behind", f"siblings have moved on from version {step}")]
        if known or now < self._asked_at + LOOK_S:
            return []
        self._asked_at, self._turn = now, self._turn + 1
        some = [asked[(self._turn + i) % len(asked)] for i in range(min(ASKED, len(asked)))]
        return [Send(peer, Propose(self._stage, step, 0)) for peer in some]
