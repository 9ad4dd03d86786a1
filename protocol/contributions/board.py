"""The board: who contributed how much, by what at least two other members of the stage say.

A member's own word about itself does not count. Of several the median counts, of two the lower. So
one liar cannot raise anybody; in a stage of three it can lower another, and a majority can say
anything. What was vouched for once stays when its vouchers are gone, until others vouch again. What
one alone says is shown as such, and kept of members only: anybody could invent others.

State: the last counts. No clock, no IO.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Final

from msgspec import Struct

from protocol.contributions.account import LEAST_VOUCHERS
from protocol.contributions.record import Counts
from protocol.ids import PeerId

MAX_KEPT: Final = 4096
"""Counts that are remembered; of more, those of one voice go first, then the smallest."""

MayVouch = Callable[[int, PeerId], bool]
"""Whether a member may speak about a stage."""


class Vouched(Struct, frozen=True):
    """A member's microbatches in one stage, and how many others say so; kept on disk as it is."""

    peer: PeerId
    stage: int
    microbatches: int
    vouchers: int

    @property
    def counts(self) -> bool:
        """Whether so many say it that it counts."""
        return self.vouchers >= LEAST_VOUCHERS


@dataclass(frozen=True, slots=True)
class Contributor:
    """A member's line on the board."""

    peer: PeerId
    microbatches: int
    """Vouched for, over all stages; each stage counts for itself."""
    vouchers: int
    """Others that vouch for them, in the stage where they are fewest; 0: nothing is vouched for."""
    unvouched: int
    """Said by one other alone."""


class Board:
    """See the module's docstring."""

    def __init__(self, kept: Iterable[Vouched] = ()) -> None:
        self._kept = {(one.peer, one.stage): one for one in kept}

    def update(
        self,
        said: Mapping[PeerId, Counts],
        may_vouch: MayVouch,
        is_member: Callable[[PeerId], bool],
    ) -> None:
        """Take the present records.

        Args:
            said: by author, our own among them.
            may_vouch: who may speak about which stage.
            is_member: whether a peer is a member now.
        """
        words: dict[tuple[PeerId, int], list[int]] = {}
        for author, counts in said.items():
            for of in counts.stages:
                for member in of.members if may_vouch(of.stage, author) else ():
                    if member.peer != author:
                        key = PeerId(member.peer), of.stage
                        words.setdefault(key, []).append(member.microbatches)
        for (peer, stage), found in words.items():
            now = Vouched(peer, stage, median_low(found), len(found))
            known = self._kept.get((peer, stage))
            if now.counts or (not known.counts if known else is_member(peer)):
                self._kept[peer, stage] = now
        self._forget_least()

    def kept(self) -> tuple[Vouched, ...]:
        """Return what is remembered when everybody is gone."""
        return tuple(self._kept[key] for key in sorted(self._kept))

    def contributors(self, without: Callable[[PeerId], bool]) -> list[Contributor]:
        """Return the lines of the board, the most work first.

        Args:
            without: the members that are left out, because they are expelled.
        """
        stages: dict[PeerId, list[Vouched]] = {}
        for one in self._kept.values():
            if not without(one.peer):
                stages.setdefault(one.peer, []).append(one)
        found = [_contributor(peer, of) for peer, of in stages.items()]
        return sorted(found, key=lambda one: (-one.microbatches, -one.unvouched, one.peer))

    def _forget_least(self) -> None:
        surplus = len(self._kept) - MAX_KEPT
        if surplus > 0:
            least = sorted(self._kept.values(), key=lambda o: (o.counts, o.microbatches, o.peer))
            for one in least[:surplus]:
                del self._kept[one.peer, one.stage]


def _contributor(peer: PeerId, stages: list[Vouched]) -> Contributor:
    counting = [one for one in stages if one.counts]
    total = sum(one.microbatches for one in counting)
    vouchers = min((one.vouchers for one in counting), default=0)
    alone = sum(one.microbatches for one in stages if not one.counts)
    return Contributor(peer, total, vouchers, alone)
