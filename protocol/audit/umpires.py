"""Umpires: members of neighbouring stages that judge where a stage is too small to.

Of two replicas each may charge the other, and nobody there can decide. So where the first or last
stage has fewer than three members those beside it judge, too. They lack its parameters; whoever
charges has to show the *case*: the version, the signed commitment of the charged member, and what
that names. All of it is bound by what the charged member has signed, so its author cannot make
anything up, and the charged member can hold nothing back and does not know when it is watched.

A case costs an umpire a download and the work of one contribution. So each takes few of an author,
and few in all: as many at once as below, and then one in as many steps as the run's budget allows.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from protocol.ids import PeerId

FEWEST: Final = 3
"""Members of a stage that need no umpires."""
AT_ONCE: Final = 4
AT_ONCE_EACH: Final = 2
MAX_KNOWN: Final = 64


class Allowance:
    """How many cases an umpire takes; ``budget`` is the share of contributions that is audited."""

    def __init__(self, budget: float) -> None:
        self._budget = min(1.0, budget)
        self._left = float(AT_ONCE)
        self._of: dict[PeerId, float] = {}
        """What is left to authors of the newest cases."""
        self._taken: dict[Hashable, None] = {}

    def closed(self) -> None:
        """A step was closed here."""
        self._left = min(AT_ONCE, self._left + self._budget)
        for author, left in list(self._of.items()):
            if (left := left + self._budget) >= AT_ONCE_EACH:
                del self._of[author]
            else:
                self._of[author] = left

    def takes(self, author: PeerId, case: Hashable) -> bool:
        """Whether a case of an author is taken, and note it: each is judged once."""
        left = self._of.get(author, float(AT_ONCE_EACH))
        full = author not in self._of and len(self._of) >= MAX_KNOWN
        if case in self._taken or self._left < 1 or left < 1 or full:
            return False
        self._left, self._of[author] = self._left - 1, left - 1
        self._taken[case] = None
        while len(self._taken) > MAX_KNOWN:
            del self._taken[next(iter(self._taken))]
        return True

    def unjudged(self, case: Hashable) -> None:
        """A case that was taken could not be looked into: it may be taken again, at its price."""
        self._taken.pop(case, None)
