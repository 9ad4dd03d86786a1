"""The results of our audits of a member, and the rule that excludes it.

Every replica records its own audits only. It charges a member that its record excludes; what a
charge is worth, others decide (``charges.py``). What all audits came to is counted for our owner.
"""

import math
from collections import Counter, deque
from enum import Enum
from typing import Literal

from protocol.ids import PeerId

TOLERANCE = 1e-3
"""Relative L2 distance of honest results of one number format. Measured: other numbers of threads
1e-7 and less."""
TOLERANCE_MIXED = 2e-2
"""Of unlike number formats. Measured: bf16 against fp32 4.6e-3."""
TOLERANCE_COARSE = 1e-2
"""Of what a coarse codec brings into a contribution along the gradient. Measured: S8 4.7e-3 and
less in stages of 10^5 parameters, where rounding is least like noise."""
SURELY_TIMES = 10.0
"""A distance of so many times the tolerance is no accident."""
WINDOW = 50
"""Newest audits of a member that count."""
CLEARED = 32
"""Audits in agreement after which a member is not suspected any more whom another one has charged:
one that lies in a fifth of its steps does not stand so many."""
STRIKES = 3
"""Of them, so many without agreement are too many."""


class Grade(Enum):
    """Result of an audit."""

    AGREES = "agrees"
    DOUBTFUL = "differs by more than honest replicas do"
    REFUSED = "does not show what it has committed to"
    LIES = "is not what it should have computed"
    SUMS = "agrees, but a sum that it broadcast is not that of the contributions"


def grade(deviation: float, tolerance: float = TOLERANCE) -> Grade:
    """Grade a result by its relative distance from ours: 0 for equal, NaN for no result at all."""
    if abs(deviation) <= tolerance:
        return Grade.AGREES
    surely = math.isnan(deviation) or abs(deviation) > SURELY_TIMES * tolerance
    return Grade.LIES if surely else Grade.DOUBTFUL


def judge(
    boundary: float, deviation: float, along: float, *, coarse: bool, mixed: bool = False
) -> Grade:
    """Return the result of an audit.

    Args:
        boundary: largest relative distance of what was sent to neighbours from what should be.
        deviation: relative distance of the contribution, less what its codec explains.
        along: the part of the whole distance that lies along the recomputed sum.
        coarse: whether contributions are sent in a codec that loses anything.
        mixed: whether passes compute in few bits, which unlike machines round otherwise.
    """
    usual = TOLERANCE_MIXED if mixed else TOLERANCE
    found = (
        grade(boundary, usual),
        grade(deviation, usual),
        grade(along, max(usual, TOLERANCE_COARSE) if coarse else usual),
    )
    return next(g for g in (Grade.LIES, Grade.DOUBTFUL, Grade.AGREES) if g in found)


class Record:
    """Our audits of one member."""

    def __init__(self) -> None:
        self._newest: deque[Grade] = deque(maxlen=WINDOW)
        self.agreed = 0
        """Audits of contributions in a row, up to now: a sum alone is no work."""
        self._suspected = 0
        """Since another member has charged it last: audits of contributions that have to agree."""
        self._charged_by = set[PeerId]()
        self.results = Counter[Grade | None]()
        """Of all audits since we started; None: the contribution could not be checked."""
        self.fault = ""
        """The newest result that did not agree, in words; empty: there was none."""

    def note(self, result: Grade | None, words: str = "", *, contributed: bool = True) -> None:
        """Take the next audit's result, in ``words``; ``contributed``: it was of more than a
        sum."""
        self.results[result] += 1
        if result is None:
            return
        if result is not Grade.AGREES:
            self.fault = words
        self._newest.append(result)
        if result is Grade.AGREES:
            self.agreed += contributed
            self._suspected = max(0, self._suspected - contributed)
        else:
            self.agreed = 0

    def suspect(self, author: PeerId) -> None:
        """Another member has charged it: it is looked at until it was found in agreement often, but
        for each author once, or a liar could have us look without end."""
        if author not in self._charged_by:
            self._charged_by.add(author)
            self._suspected = CLEARED

    @property
    def doubted(self) -> bool:
        """Whether the newest audit did not agree, or others doubt it: it is looked at soon."""
        return bool(self._suspected or (self._newest and self._newest[-1] is not Grade.AGREES))

    def charge(self) -> Literal["lies", "sums", "fails"] | None:
        """Return what to charge the member with; None: nothing."""
        if Grade.LIES in self._newest:
            return "lies"
        if Grade.SUMS in self._newest:
            return "sums"
        strikes = sum(result is not Grade.AGREES for result in self._newest)
        return "fails" if strikes >= STRIKES else None
