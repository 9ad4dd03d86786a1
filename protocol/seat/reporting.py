"""Whom we tell our ledger of the step, and when: the leader, and the next ones in line.

At once when nothing is in flight any more, for a ledger is of use once it is complete; and again,
because messages are lost.

State: the step, since when its ledger is told, and which one each was told last.
"""

import math
from collections.abc import Sequence
from typing import Final

from protocol.ids import PeerId
from protocol.pace import ANSWER_S, LOOK_S
from protocol.pipeline.microbatches import StepWork

TOLD_WHOLE: Final = 3
"""A ledger is told to so many once nothing is in flight: two of them are honest, and tell the stage
after when the step is whole."""


class Reporting:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._step, self._since = -1, 0.0
        self._told: dict[PeerId, tuple[int, float]] = {}
        """Revision of the ledger that each was told, and when it is told next."""
        self.number = 0
        """Of our last report."""

    def due(self, line: Sequence[PeerId], step: int, of: StepWork, now: float) -> list[PeerId]:
        """Return who is told our ledger now, and take it for told: the first in line, two more once
        nothing is in flight, and more as time goes on. Who is not named is forgotten.

        Args:
            line: the leaders of the step, in order; nobody, if it is not to be told.
            step: ours.
            of: our microbatches of the step.
            now: monotonic seconds.
        """
        if line and self._step != step:
            self._step, self._since, self._told = step, now, {}
        more = int(math.log2(max(1.0, (now - self._since) / LOOK_S)))
        soon = now + (ANSWER_S if of.in_flight else 0.0)
        due = dict[PeerId, tuple[int, float]]()
        whole = TOLD_WHOLE if of.done and not of.in_flight else 1
        for peer in line[: max(whole, 1 + more)]:
            revision, at = self._told.get(peer, (of.revision, now))
            due[peer] = revision, at if revision == of.revision else min(at, soon)
        told = [peer for peer, (_, at) in due.items() if at <= now]
        self._told = due | dict.fromkeys(told, (of.revision, now + ANSWER_S))
        self.number += bool(told)
        return told
