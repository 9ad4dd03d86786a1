"""One volunteer's account of who contributed to a stage, from the plans of the steps it closed.

A version counts once: what a roll-back repeats was counted already. Steps that we have not closed
ourselves are missing from the account. Of them we take over what at least two members say, and no
more than is missing, so the work of those who are gone does not vanish with who has seen it.

State: what we have seen, what was taken over, and how much is missing. No clock, no IO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from protocol.contributions.record import Counted, StageCounts
from protocol.ids import PeerId

MAX_MEMBERS: Final = 1024
"""Members of a stage that are remembered; of more, those with the least work are forgotten."""
LEAST_SAYING: Final = 2


@dataclass(slots=True)
class StageAccount:
    """See the module's docstring.

    Args:
        stage: the stage.
        per_step: microbatches per step.
    """

    stage: int
    per_step: int
    version: int = 0
    """Version up to which is counted."""
    missing: int = 0
    """Microbatches of steps up to it that are nobody's here yet."""
    seen: dict[PeerId, int] = field(default_factory=dict)
    """By member: microbatches in steps that we closed."""
    taken_over: dict[PeerId, int] = field(default_factory=dict)
    """By member: microbatches in other steps, by what others say."""

    def closed(self, version: int, shares: Mapping[PeerId, int]) -> None:
        """Our stage has committed a step.

        Args:
            version: the version that it made.
            shares: microbatches that its plan counts for each member; empty: not known.
        """
        if version <= self.version:
            return
        counted = sum(shares.values())
        self.missing += (version - self.version) * self.per_step - counted
        self.version = version
        for peer, microbatches in shares.items():
            if microbatches:
                self.seen[peer] = self.seen.get(peer, 0) + microbatches
        self._forget_least()

    def take_over(self, said: Mapping[PeerId, StageCounts]) -> None:
        """Fill what is missing with what others say.

        What several say of a member is their median (of two, the lower). Its own word is one of
        them: it may agree with another's, and alone says nothing.

        Args:
            said: the counts of this stage by author, ourselves left out. Those that are ahead of us
                wait.
        """
        behind = [one for one in said.values() if one.version <= self.version]
        words: dict[PeerId, list[int]] = {}
        for counts in behind if self.missing else ():
            for member in counts.members:
                words.setdefault(PeerId(member.peer), []).append(member.microbatches)
        wanted = {
            peer: lower_median(found) - self.count(peer)
            for peer, found in sorted(words.items())
            if len(found) >= LEAST_SAYING
        }
        wanted = {peer: more for peer, more in wanted.items() if more > 0}
        room, total = self.missing, sum(wanted.values())
        for peer, more in wanted.items():
            part = more if total <= room else more * room // total
            if part:
                self.taken_over[peer] = self.taken_over.get(peer, 0) + part
                self.missing -= part
        self._forget_least()

    def count(self, peer: PeerId) -> int:
        """Return all microbatches of a member."""
        return self.seen.get(peer, 0) + self.taken_over.get(peer, 0)

    def counts(self, most: int) -> StageCounts:
        """Return the account as a record says it, of the ``most`` members with most work."""
        found = [(self.count(peer), peer) for peer in self._members()]
        kept = sorted(sorted(found, reverse=True)[:most], key=lambda one: one[1])
        members = tuple(Counted(peer, count) for count, peer in kept)
        return StageCounts(self.stage, self.version, members)

    def _members(self) -> set[PeerId]:
        return self.seen.keys() | self.taken_over.keys()

    def _forget_least(self) -> None:
        surplus = len(self._members()) - MAX_MEMBERS
        if surplus > 0:
            for peer in sorted(self._members(), key=lambda one: (self.count(one), one))[:surplus]:
                self.seen.pop(peer, None)
                self.taken_over.pop(peer, None)


def lower_median(values: list[int]) -> int:
    """Return the median; of an even number the lower of the two in the middle."""
    return sorted(values)[(len(values) - 1) // 2]
