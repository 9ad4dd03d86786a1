"""One volunteer's account of who contributed to a stage, from the plans of the steps it closed.

A version counts once: what a roll-back repeats was counted already. Steps that we have not closed
ourselves are missing from the account. Of them we take over what at least two members say, and no
more than is missing, so the work of those who are gone does not vanish with who has seen it.

State: what is counted, by member. No clock, no IO.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low
from typing import Final

from msgspec import Struct, field

from protocol.contributions.record import Counted, StageCounts
from protocol.ids import PeerId

MAX_MEMBERS: Final = 1024
"""Members of a stage that are remembered; of more, those with the least work are forgotten."""
LEAST_VOUCHERS: Final = 2


class StageAccount(Struct):
    """See the module's docstring; it is kept on disk as it is.

    Args:
        stage: the stage.
        per_step: microbatches per step.
    """

    stage: int
    per_step: int
    version: int = 0
    """Version up to which is counted."""
    counts: dict[PeerId, int] = field(default_factory=dict)
    """Microbatches by member."""

    @property
    def missing(self) -> int:
        """Microbatches of steps up to our version that are nobody's here yet."""
        return self.version * self.per_step - sum(self.counts.values())

    def closed(self, version: int, shares: Mapping[PeerId, int]) -> None:
        """Our stage has committed a step.

        Args:
            version: the version that it made.
            shares: microbatches that its plan counts for each member; empty: not known.
        """
        if version > self.version:
            self.version = version
            self._add(shares)

    def take_over(self, said: Mapping[PeerId, StageCounts]) -> None:
        """Fill what is missing with what others say.

        What several say of a member is their median (of two, the lower). Its own word is one of
        them: it may agree with another's, and alone says nothing.

        Args:
            said: the counts of this stage by author, ourselves left out. Those that are ahead of us
                wait.
        """
        words: dict[PeerId, list[int]] = {}
        for one in said.values():
            for member in one.members if one.version <= self.version else ():
                words.setdefault(PeerId(member.peer), []).append(member.microbatches)
        lacking = {
            peer: max(0, median_low(found) - self.counts.get(peer, 0))
            for peer, found in sorted(words.items())
            if len(found) >= LEAST_VOUCHERS
        }
        room, total = self.missing, sum(lacking.values())
        if total:
            self._add({peer: min(more, more * room // total) for peer, more in lacking.items()})

    def said(self, most: int) -> StageCounts:
        """Return the account as a record says it, of the ``most`` members with most work."""
        kept = sorted(self._by_work(), reverse=True)[:most]
        members = tuple(Counted(peer, count) for peer, count in sorted((p, n) for n, p in kept))
        return StageCounts(self.stage, self.version, members)

    def _add(self, shares: Mapping[PeerId, int]) -> None:
        for peer, more in shares.items():
            if more:
                self.counts[peer] = self.counts.get(peer, 0) + more
        if (surplus := len(self.counts) - MAX_MEMBERS) > 0:
            for _, peer in sorted(self._by_work())[:surplus]:
                del self.counts[peer]

    def _by_work(self) -> list[tuple[int, PeerId]]:
        return [(count, peer) for peer, count in self.counts.items()]
